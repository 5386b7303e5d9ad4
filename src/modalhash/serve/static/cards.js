// Items as people see them: pictures, words, and cards with both codes. Whatever comes from the engine (captions,
// labels, ids) is only ever set as text, never as HTML.

import { bitsOf, strip } from "./codes.js";
import { $, element } from "./dom.js";
import { leadTo, pictorial, state } from "./state.js";

export const KINDS = {
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

export function nameOf(hit) {
  return hit.media ? `${hit.modality === pictorial() ? "Picture" : hit.modality} ${hit.id}` : hit.text ?? hit.id;
}

export function card(hit, answer, queryBits) {
  const item = $("card").content.cloneNode(true).querySelector("li");
  const link = item.querySelector("a");
  const part = (name) => item.querySelector(`.${name}`);
  const ask = { id: hit.id, modality: hit.modality };
  const bits = bitsOf(hit.code, answer.n_bits);
  leadTo(link, ask, state.current);
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

// The query's code; pointing at a card marks in it where the two differ.
export function showCode(queryBits, bits) {
  $("asked-strip").replaceChildren(strip(queryBits, bits));
}
