// The server: what is sent, and what went wrong in words.

import { state, wanted, whereOf } from "./state.js";

const BAD_FILE = [413, 415]; // too large, no picture: the same file would be refused again

const WRONG_FILTER = /^(where|labels): (?:the filter )?(.*)$/s;

// What went wrong. `retry` says whether the same request may go well later: a busy server or a broken line, but not
// something that the server understood and refused.
export class Trouble extends Error {
  constructor(title, message, { status, retry = false } = {}) {
    super(message);
    Object.assign(this, { title, status, retry });
  }

  // What is wrong with a filter: the box that it was typed into, and the words for it.
  get filter() {
    const [, field, text] = this.status === 422 ? this.message.match(WRONG_FILTER) ?? [] : [];
    return field && { box: field === "where" ? "where" : "label", text };
  }

  get badFile() {
    return BAD_FILE.includes(this.status);
  }
}

export async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const remedy = "Is it running? If not, start it with “modalhash serve”.";
    throw new Trouble("The server cannot be reached", remedy, { retry: true });
  }
  const { status } = response;
  const body = await response.json().catch(() => null);
  if (status === 401) throw new Trouble("This server needs a token", body?.error ?? "", { status });
  if (!response.ok || body === null) {
    const retry = status === 429 || status >= 500 || response.ok;
    throw new Trouble("That did not work", body?.error ?? `The server answered ${status}.`, { status, retry });
  }
  return body;
}

export const GALLERY_PAGE = 60; // items of the start page per request

// Items to look at, newest first, from one of them on.
export function listItems(entry, offset, signal) {
  const fields = new URLSearchParams({ limit: GALLERY_PAGE, offset });
  const want = wanted(entry);
  const where = whereOf(entry.options);
  if (want.length === 1) fields.set("modality", want[0]);
  if (where) fields.set("where", where);
  return call(`/items?${fields}`, { signal });
}

function sent(entry) {
  const { k, labels, confidence, unique } = entry.options;
  const where = whereOf({ ...entry.options, labels: [] });
  const fields = { k, want: wanted(entry), labels, where, min_confidence: confidence, unique };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value?.length || value > 0));
}

// The bytes of a file, which may change or go on the disk while the page is open; or what is wrong with it.
export async function readPicture(file) {
  const limit = state.engine.limits?.bytes;
  if (limit && file.size > limit) { // the server would cut the upload off, which looks like a broken line
    const [has, takes] = [file.size, limit].map((bytes) => `${(bytes / 1048576).toFixed(1)} MB`);
    const message = `The picture has ${has}; this server takes up to ${takes}. Make it smaller.`;
    throw new Trouble("That did not work", message, { status: 413 });
  }
  try {
    return new File([await file.arrayBuffer()], file.name, { type: file.type });
  } catch {
    throw new Trouble("The picture cannot be read", "It may have been moved. Choose it again.", { status: 415 });
  }
}

export async function search(entry, signal) {
  const { ask } = entry;
  if (ask.refused) throw ask.refused;
  if (ask.duplicates) return call("/duplicates", { signal });
  if (!ask.text && !ask.id && !ask.picture) return listItems(entry, 0, signal);
  if (ask.id && !ask.modality) ask.modality = (await call(`/items/${encodeURIComponent(ask.id)}`, { signal })).modality;
  const fields = sent(entry);
  if (!ask.picture) {
    const headers = { "Content-Type": "application/json" };
    return call("/search", { method: "POST", headers, body: JSON.stringify({ ...ask, ...fields }), signal });
  }
  const form = new FormData();
  form.append("image", ask.picture);
  if (ask.text) form.append("text", ask.text);
  for (const [name, value] of Object.entries(fields)) for (const one of [value].flat()) form.append(name, one);
  try {
    return await call("/search", { method: "POST", body: form, signal });
  } catch (error) {
    if (error.badFile) ask.refused = error; // never sent again, whatever else is chosen
    throw error;
  }
}
