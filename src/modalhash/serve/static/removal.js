// Items that are removed from the engine, never their files. A removal waits some seconds before it is sent, so that it
// can be undone; what still waits when the page is left is sent then.

import { $, number } from "./dom.js";
import { call } from "./server.js";

const PATIENCE = 8000; // ms

const gone = new Set(); // keys of the items that are removed, or are about to be
let waiting = null; // the items of the last removal, until it is sent
let timer = 0;

export const keyOf = ({ id, modality }) => JSON.stringify([modality, id]);

export function remove(items) {
  send();
  waiting = items;
  for (const item of items) gone.add(keyOf(item));
  say(told(items), true);
  wait();
  changed();
}

export function undo() {
  if (!waiting) return;
  for (const item of waiting) gone.delete(keyOf(item));
  waiting = null;
  hide();
  changed();
}

// Hide the cards of removed items, and groups in which one is left; show those that are back.
export function hideRemoved() {
  for (const item of document.querySelectorAll("li[data-key]")) item.hidden = gone.has(item.dataset.key);
  for (const group of document.querySelectorAll(".group")) {
    group.hidden = group.querySelectorAll("li[data-key]:not([hidden])").length < 2;
  }
}

export const isRemoved = (item) => gone.has(keyOf(item));

function told(items) {
  const [one] = items;
  const stored = items.some((item) => item.stored);
  const what = items.length > 1 ? `${number(items.length)} items removed` : "Removed";
  const several = items.length > 1;
  if (!one.media) return `${what} from the engine.`;
  if (stored) return `${what} from the engine, with the ${several ? "copies" : "copy"} that it stores.`;
  return `${what} from the engine; the ${several ? "files are" : "file is"} untouched.`;
}

// The card that had the focus is hidden: the next one gets it.
function changed() {
  const tiles = [...document.querySelectorAll("article.card .tile")];
  const here = tiles.findIndex((tile) => tile.closest("li").contains(document.activeElement));
  hideRemoved();
  if (here >= 0 && !tiles[here].checkVisibility()) {
    const next = tiles.slice(here).find((tile) => tile.checkVisibility()) ?? tiles.findLast((tile) => tile.checkVisibility());
    next?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new CustomEvent("removed"));
}

async function send(keepalive = false) {
  if (!waiting) return;
  const items = waiting;
  waiting = null;
  hide();
  const path = ({ id, modality }) => `/items/${encodeURIComponent(id)}?modality=${encodeURIComponent(modality)}`;
  const answers = await Promise.allSettled(items.map((item) => call(path(item), { method: "DELETE", keepalive })));
  const failed = answers.map(({ reason }) => reason).map((reason) => (reason?.status === 404 ? null : reason)); // gone already
  if (!failed.some(Boolean)) return;
  items.filter((_, i) => failed[i]).forEach((item) => gone.delete(keyOf(item)));
  say(`Not removed: ${failed.find(Boolean).message}`, false);
  changed();
}

function wait() {
  clearTimeout(timer);
  timer = setTimeout(send, PATIENCE);
}

function say(text, canUndo) {
  $("toast-text").textContent = text;
  $("undo").hidden = !canUndo;
  $("toast").hidden = false;
}

function hide() {
  clearTimeout(timer);
  $("toast").hidden = true;
}

$("undo").addEventListener("click", undo);
$("toast-close").addEventListener("click", () => (waiting ? send() : hide()));
for (const kind of ["mouseenter", "focusin"]) $("toast").addEventListener(kind, () => clearTimeout(timer)); // who reads has time
for (const kind of ["mouseleave", "focusout"]) $("toast").addEventListener(kind, () => waiting && wait());
addEventListener("pagehide", () => send(true));
