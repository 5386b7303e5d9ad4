// The page of `modalhash serve`: from one search to the next. What is asked lives in the address (?q=… or
// ?id=…&modality=…, &want=…, &k=…), so that a search can be shared; a picture cannot, so it lives in `entries` for as
// long as this page is open.

import { buildControls, fillControls, keys } from "./controls.js";
import { $ } from "./dom.js";
import { call, search } from "./server.js";
import { address, clampCount, pictorial, state, textual } from "./state.js";
import { say, showAnswer, showSkeleton, showStart, showTrouble } from "./views.js";

const SKELETON_AFTER = 150; // ms: an answer that is quicker must not flash

let running = null; // AbortController of the search under way
let starting = null; // promise of the start, while it lasts and when it went well
const entries = new Map(); // history key -> entry

// ---- from one search to the next

function readAddress() {
  const known = entries.get(history.state?.key);
  if (known) return known;
  const fields = new URLSearchParams(location.search);
  const ask = {};
  if (fields.get("id")) Object.assign(ask, { id: fields.get("id"), modality: fields.get("modality") ?? undefined });
  else if (fields.get("q")?.trim()) ask.text = fields.get("q").trim();
  else if (history.state?.picture) ask.lost = true; // reloaded: the picture went with the old page
  const want = Object.keys(state.engine.modalities).filter((name) => fields.getAll("want").includes(name));
  return { key: history.state?.key, ask, want, k: clampCount(fields.get("k")) };
}

function go(ask, options = {}) {
  const entry = { key: Date.now() + Math.random(), ask, want: state.current.want, k: state.current.k, ...options };
  const same = !ask.picture && !state.current.ask.picture && address(entry) === address(state.current);
  state.current.scroll = scrollY;
  entries.set(entry.key, entry);
  history[same ? "replaceState" : "pushState"]({ key: entry.key, picture: Boolean(ask.picture) }, "", address(entry));
  scrollTo(0, 0);
  return show(entry);
}

async function show(entry) {
  state.current = entry;
  running?.abort();
  fillControls();
  say("");
  $("message").hidden = true;
  if (!Object.keys(entry.ask).length || entry.ask.lost) return showStart();
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
    if (!signal.aborted) showTrouble(error, () => run(entry));
  } finally {
    clearTimeout(patience);
    if (!signal.aborted) $("results").removeAttribute("aria-busy");
  }
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
  const typed = $("query").value; // by somebody quicker than the server
  buildControls();
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
  const link = event.target.closest("a[data-ask]");
  const elsewhere = event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey; // a new tab
  if (!link || elsewhere) return;
  event.preventDefault();
  // the card that had the focus is gone
  go(JSON.parse(link.dataset.ask)).then(() => $("summary").focus({ preventScroll: true }));
}

function submit(event) {
  event.preventDefault();
  const text = $("query").value.trim();
  if (!text) return $("query").focus();
  if (matchMedia("(pointer: coarse)").matches) $("query").blur(); // the keyboard of a phone covers what was found
  whenReady(() => go(textual() ? { text } : { id: text }));
}

function byPicture(files) {
  const file = [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
  if (file) whenReady(() => pictorial() && go({ picture: file }));
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
$("direction").addEventListener("change", ({ target }) => go(state.current.ask, { want: JSON.parse(target.value) }));
$("count").addEventListener("change", () => go(state.current.ask, { k: Number($("count").value) }));
$("pick").addEventListener("click", () => {
  $("file").value = ""; // the same file may be chosen again
  $("file").click();
});
$("file").addEventListener("change", () => byPicture($("file").files));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) document.addEventListener(kind, drag);
document.addEventListener("click", follow);
document.addEventListener("paste", paste);
document.addEventListener("keydown", keys);
addEventListener("popstate", back);
whenReady();
