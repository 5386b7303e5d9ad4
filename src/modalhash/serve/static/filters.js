// Filters: which labels, dates, cameras, places and fields an item must have. Those in force are listed, to be taken off.

import { $, element, percent } from "./dom.js";
import { call } from "./server.js";
import { boxOf, defaultCount, state, takesOption } from "./state.js";

const COUNTS = [12, 24, 48, 96, 192];
const CONFIDENCES = [0.25, 0.5, 0.75, 0.9];
const MOST_LABELS = 20; // of a request
const CORNERS = ["south", "west", "north", "east"];

let fields = null; // promise of the lists of values, once the filters were opened

// `choose` takes the options that change, and searches again.
export function buildFilters(choose) {
  const options = () => state.current.options;
  $("known-labels").replaceChildren(...(state.engine.labels ?? []).map((label) => new Option(label, label)));
  for (const id of ["from", "to", "camera"]) $(id).addEventListener("change", () => choose({ [id]: $(id).value }));
  $("place").addEventListener("change", () => ($("place").value === "box" ? showBox(true) : choose({ place: $("place").value })));
  const applyBox = () => {
    const place = CORNERS.map((corner) => $(corner).value).join();
    if (boxOf(place) && place !== options().place) choose({ place });
  };
  for (const corner of CORNERS) $(corner).addEventListener("change", applyBox);
  $("count").addEventListener("change", () => choose({ k: Number($("count").value) }));
  $("confidence-field").hidden = !takesOption("min_confidence");
  $("confidence").replaceChildren(
    new Option("any", 0),
    ...CONFIDENCES.map((value) => new Option(`at least ${percent(value)}`, value)),
  );
  $("confidence").addEventListener("change", () => choose({ confidence: Number($("confidence").value) }));
  $("where-field").hidden = !takesOption("where");
  const applyWhere = () => $("where").value.trim() !== options().where && choose({ where: $("where").value.trim() });
  const addLabel = () => {
    const typed = $("label").value.trim();
    const label = state.engine.labels?.find((one) => one.toLowerCase() === typed.toLowerCase()) ?? typed;
    $("label").value = "";
    if (label && !options().labels.includes(label)) choose({ labels: [...options().labels, label].slice(-MOST_LABELS) });
  };
  $("label-add").addEventListener("click", addLabel);
  for (const [id, act] of [["label", addLabel], ["where", applyWhere], ...CORNERS.map((corner) => [corner, applyBox])]) {
    $(id).addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // it would send the box, which may be empty
      act();
    });
  }
  $("where").addEventListener("change", applyWhere);
  $("filters-button").addEventListener("click", () => toggleFilters($("filters").hidden));
  $("chosen").addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    choose(JSON.parse(button.dataset.options));
    $("filters-button").focus(); // the button that had the focus is gone
  });
}

export function toggleFilters(open) {
  $("filters").hidden = !open;
  $("filters-button").setAttribute("aria-expanded", String(open));
  if (open) fields ??= findFields().catch(() => {}); // without the lists, the other filters still work
}

// Which of the fields that photos have are there to filter by.
async function findFields() {
  const values = async (field, limit) => Object.keys((await call(`/values?field=${field}&limit=${limit}`)).values);
  const [taken, cameras, latitudes] = await Promise.all([values("taken", 1), values("camera", 100), values("latitude", 1)]);
  for (const id of ["from-field", "to-field"]) $(id).hidden = !taken.length;
  $("camera-field").hidden = !cameras.length;
  $("place-field").hidden = !latitudes.length;
  cameras.sort((one, other) => one.localeCompare(other));
  $("camera").replaceChildren(new Option("any", ""), ...cameras.map((name) => new Option(name, name)));
  fillFields();
}

function showBox(shown) {
  $("box-field").hidden = !shown;
}

// What is chosen of dates, camera and place, also where the list does not have it.
function fillFields() {
  const { from, to, camera, place } = state.current.options;
  const box = boxOf(place);
  Object.entries({ from, to }).forEach(([id, value]) => { $(id).value = value; });
  if (![...$("camera").options].some((option) => option.value === camera)) $("camera").add(new Option(camera, camera));
  $("camera").value = camera;
  $("place").value = box ? "box" : place;
  CORNERS.forEach((corner, i) => { $(corner).value = box ? box[i] : ""; });
  showBox(Boolean(box));
}

// Show the error of a filter next to its box: "where" or "label".
export function showFilterError(box, text) {
  toggleFilters(true);
  $("filter-error").textContent = text;
  $("filter-error").hidden = false;
  $(box).closest(".field").after($("filter-error"));
  $(box).setAttribute("aria-invalid", "true");
}

function hideFilterError() {
  $("filter-error").hidden = true;
  for (const box of ["where", "label"]) $(box).removeAttribute("aria-invalid");
}

export function fillFilters() {
  hideFilterError();
  const { k, labels, where, confidence, from, to, camera, place } = state.current.options;
  fillFields();
  const counts = new Set([...COUNTS.filter((n) => n <= (state.engine.limits?.k ?? 200)), defaultCount(), k]);
  const sorted = [...counts].sort((a, b) => a - b);
  $("count").replaceChildren(...sorted.map((n) => new Option(n, n, false, n === k)));
  $("where").value = where;
  $("confidence").value = CONFIDENCES.includes(confidence) ? confidence : 0;
  const chosen = labels.map((label) => [label, { labels: labels.filter((one) => one !== label) }]);
  if (from) chosen.push([`from ${from}`, { from: "" }]);
  if (to) chosen.push([`until ${to}`, { to: "" }]);
  if (camera) chosen.push([camera, { camera: "" }]);
  if (place) chosen.push([place === "known" ? "with a place" : placeInWords(boxOf(place)), { place: "" }]);
  if (where) chosen.push([where, { where: "" }]);
  if (confidence) chosen.push([`confidence at least ${percent(confidence)}`, { confidence: 0 }]);
  $("chosen").replaceChildren(...chosen.map(([text, options]) => chip(text, options)));
  $("chosen").hidden = !chosen.length;
}

function chip(text, options) {
  const button = element("button", "chip", element("span", "", text), element("span", "cross", "×"));
  button.type = "button";
  button.setAttribute("aria-label", `Remove the filter ${text}`);
  button.dataset.options = JSON.stringify(options);
  return element("li", "", button);
}

const placeInWords = ([south, west, north, east]) => `between ${south}, ${west} and ${north}, ${east}`;

export function filtered({ labels, where, confidence, from, to, camera, place }) {
  return Boolean(labels.length || where || confidence || from || to || camera || place);
}
