// Nodes, and numbers, dates and names as people read them.

export const $ = (id) => document.getElementById(id);
const PLURALS = { image: "pictures", text: "texts" }; // other modalities keep the name they were given
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };
const ordinals = new Intl.PluralRules("en-GB", { type: "ordinal" });
const FILE = /^(?:.*\/)?([^/]*?)([^/]{0,5}\.[\p{L}\p{N}]{1,5})$/su; // a name, and the end of it that stays in sight

export function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children); // strings become text nodes
  return node;
}

export function button(className, text, act) {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

export const isFileName = (text) => FILE.test(text);

// The name of a file on one line: too long, it loses its middle and never its ending; its title has all of it.
export function fileName(tag, className, path) {
  const [, stem, ending] = path.match(FILE) ?? [path, path, ""];
  const node = element(tag, `${className} file`, element("span", "stem", stem), element("span", "ending", ending));
  node.title = path;
  return node;
}

export const number = (value) => value.toLocaleString("en-GB");
export const ordinal = (value) => `${number(value)}${ENDINGS[ordinals.select(value)]}`;
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
export const SURELY = 0.995; // a probability above it would be written as 100 %
// A probability, which is never all or nothing.
export const probability = (p) => (p > SURELY ? "over 99\u00a0%" : p < 1 - SURELY ? "under 1\u00a0%" : percent(p));
export const plural = (modality) => PLURALS[modality] ?? modality;
export function counted(n, modality) {
  const name = PLURALS[modality];
  return `${number(n)} ${name ? (n === 1 ? name.slice(0, -1) : name) : `of ${modality}`}`;
}
export const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;

// A date as in "2019-06-14" or "2019-06-14T12:30:00"; anything else as it is.
export function when(text) {
  const time = new Date(text.length === 10 ? `${text}T00:00` : text.replace(" ", "T"));
  if (Number.isNaN(time.getTime())) return text;
  return time.toLocaleString("en-GB", { dateStyle: "long", ...(text.length > 10 && { timeStyle: "short" }) });
}

export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
