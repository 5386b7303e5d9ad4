// The box, the directions, the examples and the keys.

import { $, counted, element, listed, plural } from "./dom.js";
import { leadTo, modalities, pictorial, state, textual } from "./state.js";

export function buildControls() {
  const names = modalities();
  const kinds = names.map((name) => counted(state.engine.modalities[name].items, name));
  const purpose = textual() && pictorial() ? "Find pictures by words and words by pictures" : "Search across modalities";
  $("about").textContent = `${purpose}: ${listed(kinds)}, in codes of ${state.engine.n_bits} bits.`;
  $("engine-name").textContent = [state.engine.name, state.engine.method].filter(Boolean).join(" · ");
  if (!textual()) $("query-label").textContent = "Id of an item";
  $("query").placeholder = textual() ? "Type a word" : "Id of an item";
  $("query").maxLength = state.engine.limits?.text ?? 2000;
  $("pick").hidden = !pictorial();
  const choices = names.map((name) => [plural(name), [name]]);
  if (names.length > 1) choices.unshift(["the other kind", []]);
  if (names.length > 1) choices.push(["everything", names]);
  for (const [label, want] of choices) $("direction").append(choice(label, want));
  $("direction").hidden = names.length < 2;
  $("examples").append(...(textual() ? state.engine.examples ?? [] : []).map(example));
  $("examples").hidden = $("examples").childElementCount < 2;
  $("duplicates").hidden = !state.engine.duplicates;
  leadTo($("duplicates"), { duplicates: true });
}

function choice(label, want) {
  const input = element("input");
  Object.assign(input, { type: "radio", name: "want", value: JSON.stringify(want) });
  return element("label", "", input, element("span", "", label));
}

function example(text) {
  return leadTo(element("a", "chip", text), { text });
}

export function fillControls() {
  const { ask, options: { want } } = state.current;
  $("query").value = ask.text ?? (textual() ? "" : ask.id ?? "");
  for (const input of $("direction").querySelectorAll("input")) input.checked = input.value === JSON.stringify(want);
  showClear();
}

// On a phone the directions are a line to scroll: the one that is chosen is in sight.
export function showDirection() {
  const row = $("direction").parentElement;
  const chosen = $("direction").querySelector(":checked")?.parentElement;
  if (chosen) row.scrollLeft = chosen.offsetLeft + chosen.offsetWidth - row.clientWidth + 16;
}

// There is something to clear: words in the box, or a search.
export function showClear() {
  $("clear").hidden = !$("query").value && !Object.keys(state.current?.ask ?? {}).length;
}

export function keys(event) {
  if (event.target.closest("dialog")) return; // whose keys are the browser's
  const typing = event.target.matches("input:not([type=radio]), select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("query").focus();
    $("query").select();
  } else if (event.key === "Escape" && !event.target.matches("select")) {
    if (event.target === $("query")) $("query").value = "";
    else $("query").focus();
    showClear();
  } else if (event.key.startsWith("Arrow") && !event.altKey && !event.ctrlKey && !event.metaKey) {
    moveFocus(event);
  }
}

// Cards are in the tab order; arrows are a quicker way among them, by rows and columns as they are seen.
function moveFocus(event) {
  const cards = [...document.querySelectorAll("article.card .tile")];
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
