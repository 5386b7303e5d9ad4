// Items as people see them: what an item is, why it matched, and behind "Details" both codes. Whatever comes from the
// engine (captions, labels, ids) is only ever set as text, never as HTML.

import { bitsOf, strip } from "./codes.js";
import { $, element, ordinal, plural, probability } from "./dom.js";
import { leadTo, modalities, pictorial, state } from "./state.js";

const TITLES = ["title", "name", "caption", "description"]; // fields of an item that may say what it is, best first
const MOST_PILLS = 8; // further labels stand in the details
const FOUND_BY = {
  words: "Contains your words",
  meaning: "Contains a word of the same meaning",
  "text in the picture": "Your words are in the picture",
  features: "Similar in content",
};
const LIKELY = [[0.9, "Almost certain"], [0.75, "Likely"], [0.5, "Possible"], [0.25, "Doubtful"], [0, "Unlikely"]];

export const KIND_MEANINGS = {
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

export function nameOf(item) {
  const title = titleOf(item);
  return item.media && title === item.id ? `${item.modality === pictorial() ? "Picture" : item.modality} ${title}` : title;
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
export function itemLinks({ id, modality }) {
  const ask = { id, modality };
  const options = state.current.options;
  const others = modalities().filter((name) => name !== modality);
  const links = [leadTo(element("a", "like", "More like this"), ask, { ...options, want: [modality] })];
  if (others.length) {
    const kind = others.length === 1 ? plural(others[0]) : "others";
    const across = leadTo(element("a", "across", kind[0].toUpperCase() + kind.slice(1)), ask, { ...options, want: [] });
    across.title = `Find the ${kind} that match this`;
    links.push(across);
  }
  return element("p", "onward", ...links);
}

// `compared` is the code that the item's is compared with, as bits, and `whose` that is; `rank` its place, where it has
// one; `why` the lines that say why it is here, where these are not the reasons of a hit.
export function card(hit, { n_bits: n }, { compared, whose = "the query", rank, why, open }) {
  const item = $("card").content.cloneNode(true).querySelector("li");
  const part = (name) => item.querySelector(`.${name}`);
  const tile = part("tile");
  if (hit.media) {
    const title = element("span", "title", titleOf(hit));
    title.dir = "auto";
    tile.append(element("span", "paper", picture(hit.media, "", 256)), title);
  } else {
    tile.append(words(titleOf(hit)));
  }
  tile.addEventListener("click", () => open(hit));
  part("body").prepend(...[standing(hit, rank), ...(why ?? reasons(hit, n, compared))].filter(Boolean));
  const others = hit.labels.filter((label) => !hit.shared_labels?.includes(String(label)));
  part("links").append(labelList(others, MOST_PILLS), itemLinks(hit));
  const details = part("details");
  details.querySelector("summary").setAttribute("aria-label", `Details of ${nameOf(hit)}`);
  details.addEventListener("toggle", () => fillDetails(details, hit, n, compared, whose), { once: true });
  return item;
}

function standing(hit, rank) {
  const line = element("p", "standing");
  if (rank) {
    const place = element("span", "rank", rank.equal > 1 ? `Tied ${ordinal(rank.rank)}` : ordinal(rank.rank));
    if (rank.equal > 1) place.title = `${rank.equal} of these are equally near`;
    line.append(place);
  }
  if (hit.weak) line.append(element("span", "weak", "weak match"));
  return line.childElementCount ? line : null;
}

// Why an item matched, a line each, the most telling first.
function reasons(hit, n, compared) {
  const lines = [];
  if (hit.shared_labels?.length) {
    const shared = element("div", "shared", element("span", "reason", inCommon(hit)), labelList(hit.shared_labels));
    shared.classList.toggle("unsure", !surelyShared(hit));
    lines.push(shared);
  }
  for (const way of hit.found_by ?? []) if (FOUND_BY[way]) lines.push(element("p", `by by-${way.replaceAll(" ", "-")}`, FOUND_BY[way]));
  if (compared) {
    const agree = n - differing(bitsOf(hit.code, n), compared);
    const share = agree === n ? ["All ", element("b", "", String(n))] : [element("b", "", String(agree)), ` of ${n}`];
    lines.push(element("p", "agreement", ...share, " bits agree"));
  }
  if (typeof hit.confidence === "number") {
    const [, likely] = LIKELY.find(([least]) => hit.confidence >= least) ?? LIKELY.at(-1);
    const contains = hit.found_by?.includes("words") && hit.confidence < 0.5; // it matches by its words, if not by more
    const words = element("span", "likely", contains ? `By meaning: ${likely.toLowerCase()}` : `${likely} match`);
    const line = element("p", "confidence", words, " ", bar(hit.confidence), probability(hit.confidence));
    line.title = "How likely it is that this shares a label with your query";
    lines.push(line);
  }
  return lines;
}

// A shared label may be guessed: from features that the hit's labels do not confirm, or from a query that says little.
export function surelyShared({ weak, labels, shared_labels: shared }) {
  return !weak && (!labels.length || shared.every((label) => labels.map(String).includes(label)));
}

const inCommon = (hit) => (surelyShared(hit) ? "In common" : "Perhaps in common");

const differing = (bits, others) => bits.filter((bit, i) => bit !== others[i]).length;

function bar(share) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("viewBox", "0 0 100 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true"); // the words beside it say the same
  const filled = document.createElementNS(svg.namespaceURI, "rect");
  filled.setAttribute("width", 100 * Math.min(Math.max(share, 0), 1));
  filled.setAttribute("height", 1);
  svg.append(filled);
  return svg;
}

// Made when they are opened: a page may show 200 cards with codes of 256 bits.
function fillDetails(details, hit, n, compared, whose) {
  const bits = bitsOf(hit.code, n);
  const kind = element("dd", "kind", `${hit.modality}, ${hit.kind}`);
  kind.title = KIND_MEANINGS[hit.kind] ?? "";
  const facts = [element("dt", "", "id"), element("dd", "id", hit.id), element("dt", "", "code of"), kind];
  const add = (name, value) => facts.push(element("dt", "", name), element("dd", "", value));
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
