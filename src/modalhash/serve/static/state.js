// What the page knows of the engine and what it shows; how that becomes an address, so that a search can be shared.

export const state = {
  engine: null, // the answer of /engine
  current: null, // the entry that is shown: {key, ask, want, k, answer?, scroll?}
};

// The modality that typed words ("text") or given pictures ("image") are coded as, if the engine can code such.
function takes(reads, usual) {
  const known = Object.entries(state.engine?.modalities ?? {});
  const able = known.filter(([, one]) => one.query && (one.reads ?? reads) === reads);
  return (able.find(([name]) => name === usual) ?? able[0])?.[0];
}

export const textual = () => takes("text", "text");
export const pictorial = () => takes("image", "image");
export const defaultCount = () => Math.min(24, state.engine.limits?.k ?? 24);

export function clampCount(text) {
  const k = Number.parseInt(text ?? "", 10);
  return Number.isNaN(k) ? defaultCount() : Math.min(Math.max(k, 1), state.engine.limits?.k ?? 200);
}

export function address({ ask, want, k }) {
  const fields = new URLSearchParams();
  if (ask.text) fields.set("q", ask.text);
  if (ask.id) fields.set("id", ask.id);
  if (ask.id && ask.modality) fields.set("modality", ask.modality);
  for (const name of want) fields.append("want", name);
  if (k !== defaultCount()) fields.set("k", k);
  return fields.size ? `/?${fields}` : "/";
}

// A link to another search. What it asks stands in it: the page follows it without loading itself anew.
export function leadTo(link, ask, { want, k } = { want: [], k: defaultCount() }) {
  link.href = address({ ask, want, k });
  link.dataset.ask = JSON.stringify(ask);
  return link;
}
