// Items as people see them: what an item is, why it matched, and behind "Details" both codes. Whatever comes from the
// engine (captions, labels, ids) is only ever set as text, never as HTML.

import { bitsOf, strip } from "./codes.js";
import { $, button, element, fileName, isFileName, number, ordinal, plural, probability, when } from "./dom.js";
import { keyOf, remove } from "./removal.js";
import { defaultOptions, filled, leadTo, pictorial, state, unlessUsual } from "./state.js";

const TITLES = ["title", "name", "caption", "description"]; // fields of an item that may say what it is, best first
const MOST_PILLS = 8; // further labels are in the details
const NEAR = 0.25; // degrees from a photo to each side of its place
const FOUND_BY = {
  words: "Contains your words",
  meaning: "Contains a word of the same meaning",
  "text in the picture": "Your words are in the picture",
  features: "Similar in content",
};
const LIKELY = [[0.97, "Almost certain"], [0.9, "Very likely"], [0.6, "Likely"], [0.1, "Perhaps"], [0, "Unlikely"]];
const KIND_MEANINGS = {
  learned: "Learned: this code was made from the item’s labels in training",
  hashed: "Hashed: this code was made from the item’s features alone, as for anything new",
};

export function picture(media, alt, size) {
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

// A picture's title, or a text itself.
export function titleOf(item) {
  const title = TITLES.map((name) => item.extra?.[name]).find((value) => typeof value === "string" && value.trim());
  return (item.media ? title ?? item.text : item.text ?? title) ?? item.id;
}

// The same as a node: of a file the name without its folders, whose ending stays in sight.
export function titleNode(tag, className, item) {
  const title = titleOf(item);
  const isFile = item.media && title === item.id && isFileName(title);
  const node = isFile ? fileName(tag, className, title) : element(tag, className, title);
  node.dir = "auto";
  return node;
}

export function nameOf(item) {
  const title = titleOf(item);
  if (!item.media || title !== item.id) return title;
  return `${item.modality === pictorial() ? "Picture" : item.modality} ${title.split("/").pop()}`;
}

// The place of each hit and how many share it: by the ranks of the server; else by scores, or by distances.
export function ranksOf(hits) {
  const by = ["rank", "score"].find((name) => hits.every((hit) => typeof hit[name] === "number")) ?? "distance";
  const places = Map.groupBy(hits.keys(), (place) => hits[place][by]);
  return hits.map((hit) => {
    const [first, ...others] = places.get(hit[by]);
    return { rank: by === "rank" ? hit.rank : first + 1, equal: 1 + others.length };
  });
}

export function labelList(labels, most = labels.length) {
  const list = element("ul", "labels", ...labels.slice(0, most).map((label) => element("li", "label", String(label))));
  if (labels.length > most) list.append(element("li", "label-rest", `and ${labels.length - most} more`));
  list.hidden = !labels.length;
  return list;
}

// Searches by an item: among its own kind, and among the others.
function itemLinks({ id, modality }) {
  const ask = { id, modality };
  const options = state.current.options;
  const others = filled().filter((name) => name !== modality);
  const links = [leadTo(element("a", "like", "More like this"), ask, { ...options, want: unlessUsual([modality]) })];
  if (others.length) {
    const kind = others.length === 1 ? plural(others[0]) : "others";
    const across = leadTo(element("a", "across", kind[0].toUpperCase() + kind.slice(1)), ask, { ...options, want: unlessUsual(others) });
    across.title = `Find the ${kind} that match this`;
    links.push(across);
  }
  return links;
}

// What else can be done with an item: see what was taken near it, open its file, remove it.
function itemActions(hit) {
  const actions = [];
  const at = coordinates(hit);
  if (at) {
    const place = [-NEAR, NEAR].flatMap((step) => at.map((one) => (one + step).toFixed(3))).join();
    actions.push(leadTo(element("a", "", "Taken near here"), {}, { ...defaultOptions(), place }));
  }
  if (hit.media) {
    const file = element("a", "", "Open the file");
    actions.push(Object.assign(file, { href: hit.media, target: "_blank", rel: "noopener" }));
  }
  if (state.engine.writable) actions.push(button("remove", "Remove from the engine", () => remove([hit])));
  return actions;
}

function coordinates({ extra = {} }) {
  const at = [extra.latitude, extra.longitude].map(Number.parseFloat); // a table has numbers as texts
  return at.every(Number.isFinite) ? at : null;
}

export const everyAction = (hit) => element("p", "onward", ...itemLinks(hit), ...itemActions(hit));

// When, with what and where a photo was taken, as far as that is known.
export function takenLine(item) {
  const { taken, camera, lens } = item.extra ?? {};
  const place = coordinates(item)?.map((one) => one.toFixed(3)).join(", ");
  return [taken && when(String(taken)), camera, lens, place].filter(Boolean).join(" · ");
}

// A card of an item, of the kind that its options say.
//
// `compared` is the code that the item's is compared with, as bits, and `whose` that is; `rank` its place, if it has
// one; `why` the lines that say why it is here, if these are not the reasons of a hit; `bare` leaves out all but the
// item and its menu; `open` shows it large.
export function card(hit, { n_bits: n }, { compared, whose = "the query", rank, why, bare = false, open }) {
  const item = $("card").content.cloneNode(true).querySelector("li");
  const part = (name) => item.querySelector(`.${name}`);
  const tile = part("tile");
  item.dataset.key = keyOf(hit);
  tile.append(hit.media ? element("span", "paper", picture(hit.media, "", 256)) : words(titleOf(hit)));
  if (hit.media && !bare) tile.append(titleNode("span", "title", hit));
  if (hit.media) tile.setAttribute("aria-label", nameOf(hit));
  if (hit.media && bare) tile.title = [titleOf(hit), takenLine(hit)].filter(Boolean).join("\n");
  tile.addEventListener("click", () => open(hit));
  fillMenu(part("menu"), hit, bare);
  if (bare) {
    part("body").remove();
    return item;
  }
  part("body").prepend(...[standing(rank), ...(why ?? reasons(hit))].filter(Boolean));
  const others = hit.labels.filter((label) => !inCommon(hit).includes(String(label)));
  part("links").append(labelList(others, MOST_PILLS), element("p", "onward", ...itemLinks(hit)));
  const details = part("details");
  details.querySelector("summary").setAttribute("aria-label", `Details of ${nameOf(hit)}`);
  details.addEventListener("toggle", () => fillDetails(details, hit, n, compared, whose), { once: true });
  return item;
}

// Made when it is opened. A card with links of its own has one only if there is more to do.
function fillMenu(menu, hit, bare) {
  if (!bare && !state.engine.writable) return menu.remove();
  menu.querySelector("summary").setAttribute("aria-label", `Menu of ${nameOf(hit)}`);
  const items = menu.querySelector(".menu-items");
  menu.addEventListener("toggle", () => {
    items.replaceChildren(...(bare ? itemLinks(hit) : []), ...itemActions(hit));
    items.classList.remove("rightwards");
    items.classList.toggle("rightwards", items.getBoundingClientRect().left < 0); // of a card at the left edge
  });
}

function standing(rank) {
  if (!rank) return null;
  const place = element("span", "rank", rank.equal > 1 ? `Tied ${ordinal(rank.rank)}` : ordinal(rank.rank));
  if (rank.equal > 1) place.title = `${rank.equal} of these are equally near`;
  return element("p", "standing", place);
}

// Why an item matched, a line each, the most telling first.
function reasons(hit) {
  const lines = [];
  const labels = inCommon(hit);
  const guessed = looksLike(hit);
  if (labels.length) lines.push(element("div", "shared", element("span", "reason", "In common"), labelList(labels)));
  if (guessed.length) lines.push(element("p", "looks", `Looks like: ${guessed.join(", ")}`));
  for (const way of hit.found_by ?? []) {
    if (FOUND_BY[way]) lines.push(element("p", `by by-${way.replaceAll(" ", "-")}`, FOUND_BY[way]));
  }
  if (typeof hit.confidence === "number") {
    const [, likely] = LIKELY.find(([least]) => hit.confidence >= least) ?? LIKELY.at(-1);
    const contains = hit.found_by?.includes("words") && hit.confidence < 0.5; // it matches by its words, if not by more
    const said = element("span", "likely", contains ? `By meaning: ${likely.toLowerCase()}` : likely);
    const line = element("p", "confidence", said, " ", bar(hit.confidence), probability(hit.confidence));
    line.title = "How likely it is that this shares a label with your query";
    lines.push(line);
  }
  return lines;
}

// Labels of the item itself that the query has, too; of a doubtful hit none.
export function inCommon({ weak, labels, shared_labels: shared = [] }) {
  return weak ? [] : shared.filter((label) => labels.map(String).includes(label));
}

// What an item without labels seems to show.
export function looksLike({ weak, labels, shared_labels: shared = [] }) {
  return weak || labels.length ? [] : shared;
}

function bar(share) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("viewBox", "0 0 100 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the words next to it say the same
  const filledPart = document.createElementNS(svg.namespaceURI, "rect");
  filledPart.setAttribute("width", 100 * Math.min(Math.max(share, 0), 1));
  filledPart.setAttribute("height", 1);
  svg.append(filledPart);
  return svg;
}

// Made when they are opened: a page may show 200 cards with codes of 256 bits.
function fillDetails(details, hit, n, compared, whose) {
  const bits = bitsOf(hit.code, n);
  const kind = element("dd", "kind", `${hit.modality}, ${hit.kind}`);
  kind.title = KIND_MEANINGS[hit.kind] ?? "";
  const facts = [element("dt", "", "id"), element("dd", "id", hit.id), element("dt", "", "code of"), kind];
  const add = (name, value, className = "") => facts.push(element("dt", "", name), element("dd", className, value));
  if (compared) {
    const agree = bits.filter((bit, i) => bit === compared[i]).length;
    const told = agree === n ? `all ${n} agree` : `${number(agree)} of ${n} agree; those that differ are orange`;
    add("bits", told, "agreement");
  }
  if (hit.labels.length > MOST_PILLS) add("labels", hit.labels.join(", "));
  if (typeof hit.score === "number") add("score", hit.score.toPrecision(3));
  for (const [name, value] of Object.entries(hit.extra ?? {})) {
    add(name, typeof value === "object" ? JSON.stringify(value) : String(value));
  }
  const codes = [element("span", "reason", "Its code"), element("span", "bits", strip(bits, compared, whose))];
  if (compared) {
    const other = element("span", "query-bits", strip(compared, bits, whose));
    codes.push(element("span", "reason", `${whose[0].toUpperCase()}${whose.slice(1)}’s`), other);
  }
  details.append(element("div", "codes", ...codes), element("dl", "facts", ...facts));
}
