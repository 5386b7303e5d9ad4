// Groups of items that are the same, or nearly: how many there are, their cards, and the groups after these.

import { card } from "./cards.js";
import { bitsOf } from "./codes.js";
import { button, element, number, percent, SURELY } from "./dom.js";
import { remove } from "./removal.js";
import { call } from "./server.js";
import { state } from "./state.js";
import { openViewer } from "./viewer.js";

const of = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);

export function summaryOfGroups({ groups, exact, sizes, more }) {
  if (!groups.length) return "";
  const n = sum(exact);
  const kinds = [n && `${number(n)} of exact copies`, groups.length - n && `${number(groups.length - n)} of items nearly the same`];
  const counted = `${more ? "The first " : ""}${of(groups.length, "group", "groups")}`;
  const items = of(sum(sizes), "item", "items");
  return `${counted}: ${kinds.filter(Boolean).join(", ")} · ${items}${more ? " · there are more" : ""}`;
}

// The groups of an answer from one of them on; the others of a group are compared with its first.
export function groupSections({ groups, exact, sizes }, start = 0) {
  return groups.slice(start).map((group, i) => {
    const place = start + i;
    const first = bitsOf(group[0].code, state.engine.n_bits);
    const cards = group.map((hit, nth) => card(hit, state.engine, {
      compared: nth ? first : null, whose: "the first", why: [...likeness(hit, nth, exact[place]), ...keep(hit, group)], open: openViewer,
    }));
    const list = element("ol", "results", ...cards);
    list.classList.toggle("texts", group.every((hit) => !hit.media));
    const what = exact[place] ? of(sizes[place], "exact copy", "exact copies") : `${of(sizes[place], "item", "items")}, nearly the same`;
    const shown = sizes[place] > group.length ? ` (${number(group.length)} shown)` : "";
    const section = element("section", "group", element("h2", "", `Group ${number(place + 1)}: ${what}${shown}`), list);
    section.querySelectorAll("h2.lead").forEach((heading) => heading.setAttribute("aria-level", "3"));
    section.style.setProperty("--n", group.length); // as wide as its cards: small groups share a row
    return section;
  });
}

// Keep one of a group: the others that are shown are removed from the engine.
function keep(hit, group) {
  if (!state.engine.writable || group.length < 2) return [];
  return [button("label-add keep", "Keep only this", () => remove(group.filter((other) => other !== hit)))];
}

function likeness({ score }, nth, exact) {
  if (!nth) return [element("p", "alike", "Added first")];
  if (exact) return [element("p", "alike", "Exact copy")];
  if (typeof score !== "number") return [];
  return [element("p", "alike", score > SURELY ? "Hardly any difference" : `${percent(score)} alike`)];
}

// Ask for the groups after these, and put them into the answer.
export async function addGroups(answer) {
  const next = await call(`/duplicates?offset=${answer.groups.length}`);
  for (const name of ["groups", "exact", "sizes"]) answer[name].push(...next[name]);
  answer.more = next.more && next.groups.length > 0;
}
