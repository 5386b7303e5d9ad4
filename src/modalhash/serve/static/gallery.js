// What the page opens with: items to look at, newest first, and those after these.

import { card } from "./cards.js";
import { counted, number } from "./dom.js";
import { isRemoved, keyOf } from "./removal.js";
import { listItems } from "./server.js";
import { state, wanted } from "./state.js";
import { openViewer } from "./viewer.js";

export function galleryCards({ items }, start = 0) {
  return items.slice(start).map((item) => card(item, state.engine, { bare: true, open: openViewer }));
}

export function summaryOfGallery({ items, total }, entry) {
  const want = wanted(entry);
  const left = total - items.filter(isRemoved).length;
  const what = want.length === 1 ? counted(left, want[0]) : `${number(left)} items`;
  return total ? `${what}, newest first` : "";
}

// Ask for the items after these, and put them into the answer.
export async function addItems(entry) {
  const { answer } = entry;
  const next = await listItems(entry, answer.items.filter((item) => !isRemoved(item)).length);
  const known = new Set(answer.items.map(keyOf)); // some come again, if others were added meanwhile
  const fresh = next.items.filter((item) => !known.has(keyOf(item)));
  answer.items.push(...fresh);
  Object.assign(answer, { total: next.total, more: next.more && fresh.length > 0 });
}
