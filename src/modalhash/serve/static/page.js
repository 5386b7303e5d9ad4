// The page of `modalhash serve`: from one search to the next. What is asked is in the address (?q=…, ?id=…&modality=…
// or both, &want=…, &k=…, &label=… and other filters), so that a search can be shared; a picture cannot be, so the
// browser keeps it for this page and for the page when it is loaded again.

import { buildControls, closeMenus, fillControls, keys, showClear } from "./controls.js";
import { $ } from "./dom.js";
import { buildFilters, fillFilters } from "./filters.js";
import { forget, keep, recall } from "./pictures.js";
import { call, readPicture, search, Trouble } from "./server.js";
import { address, defaultOptions, pictorial, readOptions, state, subjectOf } from "./state.js";
import { say, showAnswer, showSkeleton, showTrouble } from "./views.js";

const SKELETON_AFTER = 150; // ms: an answer that is quicker must not flash

let running = null; // AbortController of the search in progress
let starting = null; // promise of the start, while it lasts and when it went well
const entries = new Map(); // history key -> entry

// ---- from one search to the next

function readAddress() {
  const known = entries.get(history.state?.key);
  if (known) return known;
  const fields = new URLSearchParams(location.search);
  const ask = {};
  if (fields.get("view") === "duplicates") ask.duplicates = true;
  else if (fields.get("id")) Object.assign(ask, { id: fields.get("id"), modality: fields.get("modality") ?? undefined });
  else if (history.state?.picture) ask.kept = history.state.picture; // loaded again: the browser may have it
  if (!ask.duplicates && fields.get("q")?.trim()) ask.text = fields.get("q").trim();
  return { key: history.state?.key, ask, options: readOptions(fields) };
}

function go(ask, options = {}) {
  const entry = { key: Date.now() + Math.random(), ask, options: { ...state.current.options, ...options } };
  const same = !ask.picture && !state.current.ask.picture && address(entry) === address(state.current);
  state.current.scroll = scrollY;
  entries.set(entry.key, entry);
  history[same ? "replaceState" : "pushState"]({ key: entry.key, picture: ask.kept }, "", address(entry));
  scrollTo(0, 0);
  return show(entry);
}

const choose = (options) => go(state.current.ask, options);

async function show(entry) {
  state.current = entry;
  running?.abort();
  fillControls();
  fillFilters();
  say("");
  $("message").hidden = true;
  if (entry.ask.kept && !entry.ask.picture) {
    const picture = await recall(entry.ask.kept);
    entry.ask = picture ? { ...entry.ask, picture } : { lost: true };
    if (state.current !== entry) return;
  }
  if (entry.answer) return showAnswer(entry);
  return run(entry);
}

async function run(entry) {
  running = new AbortController();
  const { signal } = running;
  const patience = setTimeout(showSkeleton, SKELETON_AFTER);
  $("results").setAttribute("aria-busy", "true");
  try {
    entry.answer = await search(entry, signal);
    if (!signal.aborted) showAnswer(entry);
  } catch (error) {
    if (error.badFile) drop(entry);
    if (!signal.aborted) showTrouble(error, () => run(entry));
  } finally {
    clearTimeout(patience);
    if (!signal.aborted) $("results").removeAttribute("aria-busy");
  }
}

// A picture that was refused is not asked with again when the page is loaded again.
function drop({ key, ask }) {
  if (ask.kept) forget(ask.kept);
  if (history.state?.key === key) history.replaceState({ key }, "");
}

function back() {
  if (!state.engine) return;
  if (!history.state) return history.replaceState({ key: state.current.key }, ""); // only the #fragment changed
  state.current.scroll = scrollY;
  const entry = readAddress();
  entries.set(entry.key, entry);
  show(entry);
}

async function start() {
  try {
    state.engine = await call("/engine");
  } catch (error) {
    starting = null; // so that there can be another try
    return showTrouble(error, () => whenReady());
  }
  const typed = $("query").value; // by a person quicker than the server
  buildControls();
  buildFilters(choose);
  const entry = readAddress();
  entry.key ??= Date.now();
  entries.set(entry.key, entry);
  history.replaceState({ ...history.state, key: entry.key }, "");
  show(entry);
  $("query").value ||= typed;
}

// What is asked before the engine is known waits for it.
async function whenReady(act) {
  await (starting ??= start());
  if (state.engine) act?.();
}

// ---- what a person does

function follow(event) {
  const link = event.target.closest("a[data-entry]");
  const elsewhere = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey; // a new tab
  if (!link || elsewhere) return;
  event.preventDefault();
  const { ask, options } = JSON.parse(link.dataset.entry);
  // the card that had the focus is gone
  go(ask, options).then(() => $("summary").focus({ preventScroll: true }));
}

function submit(event) {
  event.preventDefault();
  const text = $("query").value.trim();
  const subject = $("subject").hidden ? {} : subjectOf(state.current.ask);
  if (!text && !Object.keys(subject).length) return clear();
  if (matchMedia("(pointer: coarse)").matches) $("query").blur(); // the keyboard of a phone covers what was found
  whenReady(() => go(text ? { ...subject, text } : subject));
}

// Go on with the words alone.
function withoutSubject() {
  const text = $("query").value.trim();
  $("query").focus();
  go(text ? { text } : {});
}

// Back to the start, and to an address without anything.
function clear() {
  $("query").value = "";
  $("query").focus();
  whenReady(() => go({}, defaultOptions()));
}

function byPicture(files) {
  const file = [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
  if (file) whenReady(() => pictorial() && searchByPicture(file));
}

async function searchByPicture(file) {
  try {
    const picture = await readPicture(file);
    const kept = `${Date.now()} ${Math.random()}`;
    await keep(kept, picture);
    go({ picture, kept });
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    go({ picture: file, refused: error });
  }
}

const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

function drag(event) {
  if (!carriesFiles(event)) return;
  event.preventDefault(); // without this the browser would open the file and leave the page
  const inside = event.type === "dragover" || (event.type === "dragleave" && event.relatedTarget);
  $("drop").hidden = !inside;
  if (event.type === "drop") byPicture(event.dataTransfer.files);
}

function paste(event) {
  if (!event.clipboardData?.files.length) return; // text goes to the box as usual
  event.preventDefault();
  byPicture(event.clipboardData.files);
}

history.scrollRestoration = "manual"; // results come later than the browser would scroll
$("search").addEventListener("submit", submit);
$("query").addEventListener("input", showClear);
$("clear").addEventListener("click", clear);
$("subject-off").addEventListener("click", withoutSubject);
$("unique").addEventListener("change", () => choose({ unique: $("unique").checked }));
$("direction").addEventListener("change", ({ target }) => choose({ want: JSON.parse(target.value) }));
$("pick").addEventListener("click", () => {
  $("file").value = ""; // the same file may be chosen again
  $("file").click();
});
$("file").addEventListener("change", () => byPicture($("file").files));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) document.addEventListener(kind, drag);
document.addEventListener("click", follow);
document.addEventListener("click", closeMenus);
document.addEventListener("paste", paste);
document.addEventListener("relabelled", () => {
  for (const entry of entries.values()) delete entry.answer; // found before the labels were others
  show(state.current);
});
document.addEventListener("keydown", keys);
addEventListener("popstate", back);
whenReady();
