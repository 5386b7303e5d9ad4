// What the page knows of the engine and what it shows; how that becomes an address, so that a search can be shared.

export const state = {
  engine: null, // the answer of /engine
  current: null, // the entry that is shown: {key, ask, options, answer?, scroll?}
};

const DAY = /^\d{4}-\d{2}-\d{2}$/;

// The modality that typed words ("text") or given pictures ("image") are coded as, if the engine can code such.
function takes(reads, usual) {
  const known = Object.entries(state.engine?.modalities ?? {});
  const able = known.filter(([, one]) => one.query && (one.reads ?? reads) === reads);
  return (able.find(([name]) => name === usual) ?? able[0])?.[0];
}

export const textual = () => takes("text", "text");
export const pictorial = () => takes("image", "image");
export const modalities = () => Object.keys(state.engine.modalities);
export const filled = () => modalities().filter((name) => state.engine.modalities[name].items > 0);
export const takesOption = (name) => Boolean(state.engine.options?.includes(name));
export const defaultCount = () => Math.min(24, state.engine.limits?.k ?? 24);

// Where to look if it was not chosen: among pictures if there are any, else among all that there is.
export const defaultWant = () => (filled().includes(pictorial()) ? [pictorial()] : filled());
export const unlessUsual = (want) => (String(want) === String(defaultWant()) ? [] : want);
export const wanted = ({ options: { want } }) => (want.length ? want : defaultWant());

// The query of an entry in addition to words: an item of the engine, or the user's own picture.
export function subjectOf({ id, modality, picture, kept, url, refused }) {
  if (id) return { id, modality };
  return picture && !refused ? { picture, kept, url } : {};
}

// How to search if it was not chosen; each is a field of the address under its name ("label" for each of `labels`).
export const defaultOptions = () => ({
  want: [], k: defaultCount(), labels: [], where: "", confidence: 0, from: "", to: "", camera: "", place: "", unique: false,
});

export function readOptions(fields) {
  const text = (name) => fields.get(name)?.trim() ?? "";
  const day = (name) => (DAY.test(text(name)) ? text(name) : "");
  const k = Number.parseInt(text("k"), 10);
  const confidence = Number.parseFloat(text("confidence"));
  const want = modalities().filter((name) => fields.getAll("want").includes(name));
  return {
    want: unlessUsual(want),
    k: Number.isNaN(k) ? defaultCount() : Math.min(Math.max(k, 1), state.engine.limits?.k ?? 200),
    labels: [...new Set(fields.getAll("label").filter(Boolean))],
    where: text("where"),
    confidence: confidence > 0 && confidence <= 1 ? confidence : 0,
    from: day("from"),
    to: day("to"),
    camera: text("camera"),
    place: text("place") === "known" || boxOf(text("place")) ? text("place") : "",
    unique: text("unique") === "true",
  };
}

export function address({ ask, options }) {
  const { want, k, labels, ...others } = options;
  const fields = new URLSearchParams();
  if (ask.duplicates) fields.set("view", "duplicates");
  if (ask.text) fields.set("q", ask.text);
  if (ask.id) fields.set("id", ask.id);
  if (ask.id && ask.modality) fields.set("modality", ask.modality);
  for (const name of want) fields.append("want", name);
  if (k !== defaultCount()) fields.set("k", k);
  for (const label of labels) fields.append("label", label);
  for (const [name, value] of Object.entries(others)) if (value) fields.set(name, value);
  return fields.size ? `/?${fields}` : "/";
}

// The corners of a place, [south, west, north, east], from "48,11,48.5,11.5"; null if it is not a box.
export function boxOf(place) {
  const corners = place.split(",").map((part) => (part.trim() ? Number(part) : Number.NaN));
  return corners.length === 4 && corners.every(Number.isFinite) ? corners : null;
}

const quoted = (text) => `"${text.replace(/["\\]/g, "\\$&")}"`;

// The filter of the service for what was chosen; labels are a field of their own in a search.
export function whereOf({ where, labels = [], from, to, camera, place }) {
  const box = boxOf(place);
  const [south, west, north, east] = box ?? [];
  const parts = [
    ...labels.map((label) => `label = ${quoted(label)}`),
    from && `taken >= ${from}`,
    to && `taken <= ${to}`,
    camera && `camera = ${quoted(camera)}`,
    place === "known" && "latitude >= -90",
    box && `latitude >= ${south} and latitude <= ${north} and longitude >= ${west} and longitude <= ${east}`,
  ].filter(Boolean);
  if (where) parts.unshift(parts.length && /\bor\b/i.test(where) ? `(${where})` : where); // first: errors count characters
  return parts.join(" and ");
}

// A link to another search, which the page follows without loading itself again.
export function leadTo(link, ask, options = defaultOptions()) {
  link.href = address({ ask, options });
  link.dataset.entry = JSON.stringify({ ask, options });
  return link;
}
