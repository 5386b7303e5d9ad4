// The server: what is sent, and what went wrong in words.

import { pictorial, state, textual } from "./state.js";

export class Trouble extends Error {
  constructor(title, message, status) {
    super(message);
    Object.assign(this, { title, status });
  }
}

export async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached", "Is it running? If not, start it with “modalhash serve”.");
  }
  const body = await response.json().catch(() => null);
  if (response.status === 401) throw new Trouble("This server needs a token", body?.error ?? "", 401);
  if (!response.ok || body === null) {
    throw new Trouble("That did not work", body?.error ?? `The server answered ${response.status}.`, response.status);
  }
  return body;
}

// Where nobody chose, look among the other kinds: a word finds pictures, a picture finds words.
export function wanted({ ask, want }) {
  if (want.length) return want;
  const own = ask.text ? textual() : ask.picture ? pictorial() : ask.modality;
  const others = Object.keys(state.engine.modalities).filter((name) => name !== own);
  return others.length ? others : Object.keys(state.engine.modalities);
}

export function post(fields, signal) {
  const headers = { "Content-Type": "application/json" };
  return call("/search", { method: "POST", headers, body: JSON.stringify(fields), signal });
}

export async function search(entry, signal) {
  const { ask, k } = entry;
  if (ask.id && !ask.modality) ask.modality = (await call(`/items/${encodeURIComponent(ask.id)}`, { signal })).modality;
  const want = wanted(entry);
  if (!ask.picture) return post({ ...ask, k, want }, signal);
  const limit = state.engine.limits?.bytes;
  if (limit && ask.picture.size > limit) { // the server would cut the upload off, which looks like a broken line
    const [has, takes] = [ask.picture.size, limit].map((bytes) => `${(bytes / 1048576).toFixed(1)} MB`);
    throw new Trouble("That did not work", `The picture has ${has}; this server takes up to ${takes}. Make it smaller.`);
  }
  const form = new FormData();
  form.append("image", ask.picture);
  form.append("k", k);
  for (const name of want) form.append("want", name);
  return call("/search", { method: "POST", body: form, signal });
}
