// The page of `modalhash serve`. What is asked lives in the address (?q=… or ?id=…&modality=…, &want=…, &k=…), so
// that a search can be shared; a picture cannot, so it lives in `entries` for as long as this page is open. Whatever
// comes from the engine (captions, labels, ids) is only ever set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const SKELETON_AFTER = 150; // ms: an answer that is quicker must not flash
const COUNTS = [12, 24, 48, 96, 192];
const PLURALS = { image: "pictures", text: "texts" }; // other modalities keep the name they were given
const KINDS = {
  learned: "Learned: this code was made from the item’s labels in training",
  hashed: "Hashed: this code was made from the item’s features alone, as for anything new",
};

let engine = null; // the answer of /engine
let current = null; // the entry that is shown
let running = null; // AbortController of the search under way
let starting = null; // promise of the start, while it lasts and when it went well
const entries = new Map(); // history key -> entry: {key, ask, want, k, answer?, scroll?}

// ---- small things

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children); // strings become text nodes
  return node;
}

const number = (value) => value.toLocaleString("en-GB");
const plural = (modality) => PLURALS[modality] ?? modality;
const counted = (n, modality) => `${number(n)} ${PLURALS[modality] ?? `of ${modality}`}`;
const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);
const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;

// The modality that typed words ("text") or given pictures ("path") are coded as, if the engine can code such.
function takes(reads, usual) {
  const able = Object.entries(engine?.modalities ?? {}).filter(([, one]) => one.query && (one.reads ?? reads) === reads);
  return (able.find(([name]) => name === usual) ?? able[0])?.[0];
}

const textual = () => takes("text", "text");
const pictorial = () => takes("path", "image");

// ---- the address

function readAddress() {
  const known = entries.get(history.state?.key);
  if (known) return known;
  const fields = new URLSearchParams(location.search);
  const ask = {};
  if (fields.get("id")) Object.assign(ask, { id: fields.get("id"), modality: fields.get("modality") ?? undefined });
  else if (fields.get("q")?.trim()) ask.text = fields.get("q").trim();
  else if (history.state?.picture) ask.lost = true; // reloaded: the picture went with the old page
  const want = Object.keys(engine.modalities).filter((name) => fields.getAll("want").includes(name));
  return { key: history.state?.key, ask, want, k: clampCount(fields.get("k")) };
}

function clampCount(text) {
  const k = Number.parseInt(text ?? "", 10);
  return Number.isNaN(k) ? defaultCount() : Math.min(Math.max(k, 1), engine.limits?.k ?? 200);
}

const defaultCount = () => Math.min(24, engine.limits?.k ?? 24);

function address({ ask, want, k }) {
  const fields = new URLSearchParams();
  if (ask.text) fields.set("q", ask.text);
  if (ask.id) fields.set("id", ask.id);
  if (ask.id && ask.modality) fields.set("modality", ask.modality);
  for (const name of want) fields.append("want", name);
  if (k !== defaultCount()) fields.set("k", k);
  return fields.size ? `/?${fields}` : "/";
}

function go(ask, options = {}) {
  const entry = { key: Date.now() + Math.random(), ask, want: current.want, k: current.k, ...options };
  const same = !ask.picture && !current.ask.picture && address(entry) === address(current);
  current.scroll = scrollY;
  entries.set(entry.key, entry);
  history[same ? "replaceState" : "pushState"]({ key: entry.key, picture: Boolean(ask.picture) }, "", address(entry));
  scrollTo(0, 0);
  return show(entry);
}

// ---- the server

class Trouble extends Error {
  constructor(title, message, status) {
    super(message);
    Object.assign(this, { title, status });
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached", "Is it running? If not, start it with “modalhash serve”.");
  }
  const body = await response.json().catch(() => null);
  if (response.status === 401) throw new Trouble("This server needs a token", body?.error ?? "", 401);
  if (!response.ok || body === null) {
    throw new Trouble("That did not work", body?.error ?? `The server answered ${response.status}.`, response.status);
  }
  return body;
}

// Where nobody chose, look among the other kinds: a word finds pictures, a picture finds words.
function wanted({ ask, want }) {
  if (want.length) return want;
  const own = ask.text ? textual() : ask.picture ? pictorial() : ask.modality;
  const others = Object.keys(engine.modalities).filter((name) => name !== own);
  return others.length ? others : Object.keys(engine.modalities);
}

function post(fields, signal) {
  const headers = { "Content-Type": "application/json" };
  return call("/search", { method: "POST", headers, body: JSON.stringify(fields), signal });
}

async function search(entry, signal) {
  const { ask, k } = entry;
  if (ask.id && !ask.modality) ask.modality = (await call(`/items/${encodeURIComponent(ask.id)}`, { signal })).modality;
  const want = wanted(entry);
  if (!ask.picture) return post({ ...ask, k, want }, signal);
  const limit = engine.limits?.bytes;
  if (limit && ask.picture.size > limit) { // the server would cut the upload off, which looks like a broken line
    const [has, takes] = [ask.picture.size, limit].map((bytes) => `${(bytes / 1048576).toFixed(1)} MB`);
    throw new Trouble("That did not work", `The picture has ${has}; this server takes up to ${takes}. Make it smaller.`);
  }
  const form = new FormData();
  form.append("image", ask.picture);
  form.append("k", k);
  for (const name of want) form.append("want", name);
  return call("/search", { method: "POST", body: form, signal });
}

// ---- codes

function bitsOf(hex, n) {
  const bits = [];
  for (let i = 0; i < n; i++) bits.push((Number.parseInt(hex[i >> 2], 16) >> (3 - (i & 3))) & 1);
  return bits;
}

// One bar per bit: dark for 1, light for 0; where it differs from `other` longer and in the accent colour, full for 1
// and hollow for 0. Three paths, not a node per bit: a page may show 200 codes of 256 bits.
function strip(bits, other) {
  const columns = Math.min(bits.length, bits.length > 128 ? 64 : 32);
  const rows = Math.ceil(bits.length / columns);
  const high = rows > 2 ? 20 : 32; // of a bar that differs; the others leave a quarter of it
  const paths = { one: "", zero: "", differs: "" };
  const different = [];
  bits.forEach((bit, i) => {
    const column = i % columns;
    const x = column * 10 + Math.floor(column / 8) * 5; // a gap after each byte, for the eye to count by
    const y = Math.floor(i / columns) * (high + 8);
    if (other && other[i] !== bit) {
      different.push(i + 1);
      paths.differs += `M${x} ${y}h8v${high}h-8z` + (bit ? "" : `m2 2v${high - 4}h4v${4 - high}z`);
    } else {
      paths[bit ? "one" : "zero"] += `M${x} ${y + high / 8}h8v${high * 0.75}h-8z`;
    }
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const width = columns * 10 + (Math.ceil(columns / 8) - 1) * 5 - 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${rows * (high + 8) - 8}`);
  svg.setAttribute("class", "strip");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", other ? differenceInWords(different) : `Code of ${bits.length} bits: ${bits.join("")}`);
  for (const [name, path] of Object.entries(paths)) {
    const node = document.createElementNS(svg.namespaceURI, "path");
    node.setAttribute("class", name);
    node.setAttribute("fill-rule", "evenodd");
    node.setAttribute("d", path);
    svg.append(node);
  }
  return svg;
}

function differenceInWords(positions) {
  if (!positions.length) return "The code equals the query’s";
  const some = positions.slice(0, 16);
  const rest = positions.length - some.length;
  return `Differs from the query in bit ${listed([...some, ...(rest ? [`${rest} more`] : [])].map(String))}`;
}

// ---- cards

function picture(media, alt, size) {
  const image = element("img");
  const sized = (pixels) => {
    const url = new URL(media, location.href);
    url.searchParams.set("size", pixels);
    return url.pathname + url.search;
  };
  image.loading = "lazy";
  image.decoding = "async";
  image.draggable = false;
  image.alt = alt;
  // A photo may lose its edges to the square; what is much longer than wide, or wider than long, is shown whole.
  image.addEventListener("load", () => {
    const ratio = image.naturalWidth / image.naturalHeight;
    image.classList.toggle("whole", ratio > 1.6 || ratio < 0.625);
  });
  image.addEventListener("error", () => image.replaceWith(element("span", "gone", "picture not available")));
  image.srcset = `${sized(size)} 1x, ${sized(2 * size)} 2x`;
  return image;
}

function words(text) {
  const node = element("span", "words", text);
  node.dir = "auto";
  node.classList.add(text.length < 28 ? "short" : text.length < 100 ? "medium" : "long");
  return node;
}

function nameOf(hit) {
  return hit.media ? `${hit.modality === pictorial() ? "Picture" : hit.modality} ${hit.id}` : hit.text ?? hit.id;
}

function card(hit, answer, queryBits) {
  const item = $("card").content.cloneNode(true).querySelector("li");
  const link = item.querySelector("a");
  const part = (name) => item.querySelector(`.${name}`);
  const ask = { id: hit.id, modality: hit.modality };
  const bits = bitsOf(hit.code, answer.n_bits);
  link.href = address({ ask, want: current.want, k: current.k });
  link.addEventListener("click", (event) => follow(event, ask));
  for (const kind of ["pointerenter", "focus"]) link.addEventListener(kind, () => showCode(queryBits, bits));
  for (const kind of ["pointerleave", "blur"]) link.addEventListener(kind, () => showCode(queryBits));
  part("tile").append(hit.media ? picture(hit.media, hit.text ?? nameOf(hit), 256) : words(hit.text ?? hit.id));
  part("tile").classList.toggle("paper", Boolean(hit.media));
  part("distance").firstElementChild.textContent = hit.distance || "All";
  part("distance").lastElementChild.textContent =
    hit.distance ? `of ${answer.n_bits} bits differ` : `${answer.n_bits} bits agree`;
  part("bits").append(strip(bits, queryBits));
  part("id").textContent = (hit.media && hit.text) || hit.id;
  part("id").title = hit.id;
  part("kind").textContent = hit.kind;
  part("kind").title = KINDS[hit.kind] ?? "";
  part("labels").append(...hit.labels.map((label) => element("span", "label", String(label))));
  return item;
}

function follow(event, ask) {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return; // a new tab or window
  event.preventDefault();
  go(ask).then(() => $("summary").focus({ preventScroll: true })); // the card that had the focus is gone
}

// The query's code; pointing at a card marks in it where the two differ.
function showCode(queryBits, bits) {
  $("asked-strip").replaceChildren(strip(queryBits, bits));
}

// ---- states

async function show(entry) {
  current = entry;
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

function setState(state) {
  document.body.dataset.state = state;
  $("hint").hidden = state !== "start" || !pictorial();
  $("taste").hidden = state !== "start";
  $("asked").hidden = !["loading", "results", "nothing"].includes(state);
  $("legend").hidden = $("why").hidden = state !== "results";
  $("warnings").hidden = true;
  $("message").hidden = true;
  if (state !== "results") $("results").replaceChildren();
}

function showStart() {
  setState("start");
  document.title = "modalhash";
  showTaste().catch(() => {}); // it is an ornament: where it fails, the start is as good without
  if (current.ask.lost) message("The picture is gone", "A picture is kept only while its page is open. Drop it again.");
}

// What this page is for, in two lines: a word with its nearest pictures, and one of these with its nearest words.
async function showTaste() {
  if ($("taste").childElementCount || !textual() || !pictorial()) return;
  const examples = (engine.examples ?? []).slice(0, 4);
  const answers = await Promise.all(examples.map((text) => post({ text, k: 6, want: [pictorial()] })));
  const [surest] = answers.filter(({ hits }) => hits.length && hits.every((hit) => hit.media))
    .sort((one, other) => one.hits[0].distance - other.hits[0].distance);
  if (!surest) return;
  const [first] = surest.hits;
  const byFirst = { id: first.id, modality: first.modality };
  const texts = (await post({ ...byFirst, k: 4, want: [textual()] })).hits;
  const small = (hit) => element("span", "small paper", picture(hit.media, nameOf(hit), 96));
  const said = (text) => element("span", "said", text);
  $("taste").replaceChildren(
    tasteRow({ text: surest.query.text }, said(`“${surest.query.text}”`), surest.hits.map(small)),
    tasteRow(byFirst, small(first), texts.map((hit) => said(hit.text ?? hit.id))),
  );
}

function tasteRow(ask, shown, found) {
  const row = element("a", "taste-row", shown, element("span", "arrow", "→"), element("span", "found", ...found));
  row.href = address({ ask, want: [], k: defaultCount() });
  row.addEventListener("click", (event) => follow(event, ask));
  return row;
}

function showSkeleton() {
  setState("loading");
  say("Searching …");
  const body = () => element("span", "body", element("span", "line"), element("span", "line"), element("span", "line"));
  const blank = () => element("li", "", element("div", "card blank", element("span", "tile"), body()));
  showAsked({ modality: current.ask.modality }, current.ask);
  showCode(Array(engine.n_bits).fill(0)); // a code to come, so that nothing jumps when it does
  $("results").replaceChildren(...Array.from({ length: Math.min(current.k, 12) }, blank));
}

function showAnswer({ answer, ask, scroll }) {
  const { hits, query } = answer;
  const bits = bitsOf(query.code, answer.n_bits);
  setState(hits.length ? "results" : "nothing");
  showAsked(query, ask);
  showCode(bits);
  say(summary(answer));
  $("why").replaceChildren($("why").firstElementChild, ...explanation(query).map((text) => element("p", "", text)));
  $("warnings").hidden = !answer.warnings?.length;
  $("warnings").replaceChildren(...(answer.warnings ?? []).map((text) => element("li", "", text)));
  $("results").classList.toggle("texts", hits.every((hit) => !hit.media));
  $("results").replaceChildren(...hits.map((hit) => card(hit, answer, bits)));
  if (!hits.length) message("Nothing found", "There is nothing here to look through. Look in another kind.");
  scrollTo(0, scroll ?? 0);
}

function showAsked(query, ask) {
  const text = ask.text ? `“${ask.text}”` : ask.picture ? ask.picture.name || "picture" : query.text ?? ask.id;
  const what = query.modality === pictorial() ? "a picture" : `a ${query.modality ?? "thing"}`;
  const chose = [`You chose ${what}`, ...(query.labels ?? [])].join(" · ");
  const how = ask.text ? "You typed" : ask.picture ? "You gave a picture" : chose;
  const title = element("span", "asked-text", text);
  title.dir = "auto";
  const parts = [element("div", "asked-words", element("span", "asked-how", how), title)];
  if (ask.picture) parts.unshift(element("span", "asked-picture paper", ownPicture(ask)));
  else if (query.media) parts.unshift(element("span", "asked-picture paper", picture(query.media, nameOf(query), 128)));
  $("asked-what").replaceChildren(...parts);
  document.title = `${text} – modalhash`;
}

function ownPicture(ask) {
  ask.url ??= URL.createObjectURL(ask.picture); // kept for the back button; the browser frees it with the page
  const image = element("img", "whole");
  image.src = ask.url;
  image.alt = "Your picture";
  return image;
}

function summary(answer) {
  const where = answer.want ?? wanted(current);
  const items = where.length === 1 ? counted(answer.searched, where[0]) : `${number(answer.searched)} items`;
  const found = answer.hits.length ? `${number(answer.hits.length)} nearest of ${items}` : `Nothing among ${items}`;
  return `${found} · ${answer.n_bits} bits · ${milliseconds(answer.milliseconds)}`;
}

const SOURCES = {
  text: "Your text was coded from its features alone, as anything new is.",
  image: "Your picture was coded from its features alone, as anything new is.",
  id: "This item was asked with the code it has in the engine.",
};

function explanation(query) {
  const kinds = listed(Object.keys(engine.modalities).map(plural));
  return [
    `${SOURCES[query.kind]} Its code is compared with every other, bit by bit: the fewer bits differ, the nearer.`,
    engine.paired ? "" : `Nobody told the engine which ${kinds} belong together: they were never paired.`,
    ...Object.values(KINDS).map((text) => `${text}.`),
  ].filter(Boolean);
}

function say(text) {
  if ($("summary").textContent !== text) $("summary").textContent = text; // screen readers announce each change
}

function message(title, text, ...actions) {
  $("message").replaceChildren(element("h2", "", title), element("p", "", text), ...actions);
  $("message").hidden = false;
}

function showTrouble(error, retry) {
  const title = error.title ?? "That did not work";
  if (!(error instanceof Trouble)) console.error(error); // a mistake of this page: people see that, too
  setState("error");
  say("");
  document.title = `${title} – modalhash`;
  if (error.status === 401) return message(title, error.message, tokenForm(retry));
  const button = element("button", "again", "Try again");
  button.type = "button";
  button.addEventListener("click", retry);
  message(title, error.message, button);
}

function tokenForm(retry) {
  const form = $("token").content.cloneNode(true).querySelector("form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = form.querySelector("input").value;
    await fetch(`/?token=${encodeURIComponent(token)}`).catch(() => null); // the answer sets a cookie
    retry();
  });
  return form;
}

// ---- controls

function buildControls() {
  const names = Object.keys(engine.modalities);
  const kinds = names.map((name) => counted(engine.modalities[name].items, name));
  const purpose = textual() && pictorial() ? "Find pictures by words and words by pictures" : "Search across modalities";
  $("about").textContent = `${purpose}: ${listed(kinds)}, in codes of ${engine.n_bits} bits.`;
  $("engine-name").textContent = [engine.name, engine.method].filter(Boolean).join(" · ");
  if (!textual()) $("query-label").textContent = "Id of an item";
  $("query").placeholder = textual() ? "Type a word" : "Id of an item";
  $("query").maxLength = engine.limits?.text ?? 2000;
  $("pick").hidden = !pictorial();
  const choices = names.map((name) => [plural(name), [name]]);
  if (names.length > 1) choices.unshift(["the other kind", []]);
  if (names.length > 1) choices.push(["everything", names]);
  for (const [label, want] of choices) $("direction").append(choice(label, want));
  $("direction").hidden = names.length < 2;
  $("examples").append(...(textual() ? engine.examples ?? [] : []).map(example));
  $("examples").hidden = $("examples").childElementCount < 2;
}

function choice(label, want) {
  const input = element("input");
  Object.assign(input, { type: "radio", name: "want", value: JSON.stringify(want) });
  input.addEventListener("change", () => go(current.ask, { want }));
  return element("label", "", input, element("span", "", label));
}

function example(text) {
  const link = element("a", "chip", text);
  link.href = address({ ask: { text }, want: [], k: defaultCount() });
  link.addEventListener("click", (event) => follow(event, { text }));
  return link;
}

function fillControls() {
  const { ask, want, k } = current;
  $("query").value = ask.text ?? (textual() ? "" : ask.id ?? "");
  for (const input of $("direction").querySelectorAll("input")) input.checked = input.value === JSON.stringify(want);
  const counts = [...new Set([...COUNTS.filter((n) => n <= (engine.limits?.k ?? 200)), k])].sort((a, b) => a - b);
  $("count").replaceChildren(...counts.map((n) => new Option(n, n, false, n === k)));
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

// ---- dropping, pasting, keys

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

function keys(event) {
  const typing = event.target.matches("input:not([type=radio]), select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("query").focus();
    $("query").select();
  } else if (event.key === "Escape" && !event.target.matches("select")) {
    if (event.target === $("query")) $("query").value = "";
    else $("query").focus();
  } else if (event.key.startsWith("Arrow") && !event.altKey && !event.ctrlKey && !event.metaKey) {
    moveFocus(event);
  }
}

// Cards are links in the tab order; arrows are a quicker way among them, by rows and columns as they are seen.
function moveFocus(event) {
  const cards = [...$("results").querySelectorAll("a.card")];
  const here = cards.indexOf(event.target);
  if (here < 0 && !(event.target === $("query") && event.key === "ArrowDown")) return;
  const top = cards[0]?.getBoundingClientRect().top;
  const below = cards.findIndex((one) => one.getBoundingClientRect().top > top);
  const columns = below < 0 ? cards.length : below;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  const target = here < 0 ? cards[0] : cards[here + step];
  if (!target && event.key !== "ArrowUp") return;
  event.preventDefault();
  (target ?? $("query")).focus();
}

// ---- start

async function start() {
  try {
    engine = await call("/engine");
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
  if (engine) act?.();
}

function back() {
  if (!engine) return;
  if (!history.state) return history.replaceState({ key: current.key }, ""); // only the #fragment changed
  current.scroll = scrollY;
  const entry = readAddress();
  entries.set(entry.key, entry);
  show(entry);
}

history.scrollRestoration = "manual"; // results come later than the browser would scroll
$("search").addEventListener("submit", submit);
$("count").addEventListener("change", () => go(current.ask, { k: Number($("count").value) }));
$("pick").addEventListener("click", () => {
  $("file").value = ""; // the same file may be chosen again
  $("file").click();
});
$("file").addEventListener("change", () => byPicture($("file").files));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) document.addEventListener(kind, drag);
document.addEventListener("paste", paste);
document.addEventListener("keydown", keys);
addEventListener("popstate", back);
whenReady();
