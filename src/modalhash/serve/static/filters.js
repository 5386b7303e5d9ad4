// Filters: which labels, codes and fields a hit must have. What is in force stands beside the button, to be taken off.

import { $, element, percent } from "./dom.js";
import { defaultCount, KINDS, state, takesOption } from "./state.js";

const COUNTS = [12, 24, 48, 96, 192];
const CONFIDENCES = [0.25, 0.5, 0.75, 0.9];
const MOST_LABELS = 20; // of a request
export const KIND_NAMES = { learned: "learned codes", hashed: "hashed codes" };

// `choose` takes the options that change, and searches anew.
export function buildFilters(choose) {
  const options = () => state.current.options;
  $("known-labels").replaceChildren(...(state.engine.labels ?? []).map((label) => new Option(label, label)));
  $("kind").replaceChildren(new Option("all", ""), ...KINDS.map((kind) => new Option(KIND_NAMES[kind], kind)));
  $("kind").addEventListener("change", () => choose({ kind: $("kind").value }));
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
  for (const [id, act] of [["label", addLabel], ["where", applyWhere]]) {
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
}

// What is wrong with a filter, beside its box: "where" or "label".
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
  const { k, labels, kind, where, confidence } = state.current.options;
  const counts = new Set([...COUNTS.filter((n) => n <= (state.engine.limits?.k ?? 200)), defaultCount(), k]);
  const sorted = [...counts].sort((a, b) => a - b);
  $("count").replaceChildren(...sorted.map((n) => new Option(n, n, false, n === k)));
  $("kind").value = kind;
  $("where").value = where;
  $("confidence").value = CONFIDENCES.includes(confidence) ? confidence : 0;
  const chosen = labels.map((label) => [label, { labels: labels.filter((one) => one !== label) }]);
  if (kind) chosen.push([KIND_NAMES[kind], { kind: "" }]);
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

export const filtered = ({ labels, kind, where, confidence }) => Boolean(labels.length || kind || where || confidence);
export const withoutFilters = { labels: [], kind: "", where: "", confidence: 0 };
