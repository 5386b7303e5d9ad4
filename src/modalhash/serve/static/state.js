// What the page knows of the engine and what it shows; how that becomes an address, so that a search can be shared.

export const state = {
  engine: null, // the answer of /engine
  current: null, // the entry that is shown: {key, ask, options, answer?, scroll?}
};

export const KINDS = ["learned", "hashed"];

// The modality that typed words ("text") or given pictures ("image") are coded as, if the engine can code such.
function takes(reads, usual) {
  const known = Object.entries(state.engine?.modalities ?? {});
  const able = known.filter(([, one]) => one.query && (one.reads ?? reads) === reads);
  return (able.find(([name]) => name === usual) ?? able[0])?.[0];
}

export const textual = () => takes("text", "text");
export const pictorial = () => takes("image", "image");
export const modalities = () => Object.keys(state.engine.modalities);
export const takesOption = (name) => Boolean(state.engine.options?.includes(name));
export const defaultCount = () => Math.min(24, state.engine.limits?.k ?? 24);

// How to search where nobody chose; each is a field of the address under its name ("label" for each of `labels`).
export const defaultOptions = () => ({ want: [], k: defaultCount(), labels: [], kind: "", where: "", confidence: 0 });

export function readOptions(fields) {
  const k = Number.parseInt(fields.get("k") ?? "", 10);
  const confidence = Number.parseFloat(fields.get("confidence") ?? "");
  return {
    want: modalities().filter((name) => fields.getAll("want").includes(name)),
    k: Number.isNaN(k) ? defaultCount() : Math.min(Math.max(k, 1), state.engine.limits?.k ?? 200),
    labels: [...new Set(fields.getAll("label").filter(Boolean))],
    kind: KINDS.includes(fields.get("kind")) ? fields.get("kind") : "",
    where: fields.get("where")?.trim() ?? "",
    confidence: confidence > 0 && confidence <= 1 ? confidence : 0,
  };
}

export function address({ ask, options: { want, k, labels, kind, where, confidence } }) {
  const fields = new URLSearchParams();
  if (ask.duplicates) fields.set("view", "duplicates");
  if (ask.text) fields.set("q", ask.text);
  if (ask.id) fields.set("id", ask.id);
  if (ask.id && ask.modality) fields.set("modality", ask.modality);
  for (const name of want) fields.append("want", name);
  if (k !== defaultCount()) fields.set("k", k);
  for (const label of labels) fields.append("label", label);
  if (kind) fields.set("kind", kind);
  if (where) fields.set("where", where);
  if (confidence) fields.set("confidence", confidence);
  return fields.size ? `/?${fields}` : "/";
}

// A link to another search. What it asks stands in it: the page follows it without loading itself anew.
export function leadTo(link, ask, options = defaultOptions()) {
  link.href = address({ ask, options });
  link.dataset.entry = JSON.stringify({ ask, options });
  return link;
}
