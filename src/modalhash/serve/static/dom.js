// Nodes, and numbers and names as people read them.

export const $ = (id) => document.getElementById(id);
const PLURALS = { image: "pictures", text: "texts" }; // other modalities keep the name they were given
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };
const ordinals = new Intl.PluralRules("en-GB", { type: "ordinal" });

export function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children); // strings become text nodes
  return node;
}

export const number = (value) => value.toLocaleString("en-GB");
export const ordinal = (value) => `${number(value)}${ENDINGS[ordinals.select(value)]}`;
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
export const SURELY = 0.995; // a probability above it would be written as 100 %
// A probability, which is never all or nothing.
export const probability = (p) => (p > SURELY ? "over 99\u00a0%" : p < 1 - SURELY ? "under 1\u00a0%" : percent(p));
export const plural = (modality) => PLURALS[modality] ?? modality;
export const counted = (n, modality) => `${number(n)} ${PLURALS[modality] ?? `of ${modality}`}`;
export const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;

export function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
