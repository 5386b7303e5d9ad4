// The box, the directions, the suggestions and the keys.

import { picture, nameOf } from "./cards.js";
import { $, counted, element, listed, plural } from "./dom.js";
import { undo } from "./removal.js";
import { defaultOptions, filled, leadTo, pictorial, state, subjectOf, takesOption, textual, unlessUsual } from "./state.js";

const NARROW = matchMedia("(max-width: 700px)");

export function buildControls() {
  const names = filled();
  const kinds = names.map((name) => counted(state.engine.modalities[name].items, name));
  const ways = [textual() && "words", pictorial() && "a picture"].filter(Boolean).join(" or by ");
  $("about").textContent = `${listed(kinds) || "Nothing here yet"}${ways && `. Search by ${ways}.`}`;
  $("engine-name").textContent = [state.engine.name, state.engine.method].filter(Boolean).join(" · ");
  $("search").classList.toggle("wordless", !textual());
  $("no-words").textContent = noWords();
  $("no-words").hidden = Boolean(textual());
  $("query").maxLength = state.engine.limits?.text ?? 2000;
  $("pick").hidden = !pictorial();
  const choices = [...names.map((name) => [plural(name), [name]]), ["everything", names]];
  for (const [label, want] of choices) $("direction").append(choice(label, unlessUsual(want)));
  $("direction").hidden = names.length < 2;
  $("unique-field").hidden = !takesOption("unique");
  $("examples").append(...(state.engine.suggestions ?? state.engine.examples ?? []).filter(leads).map(suggestion));
  $("examples").hidden = $("examples").childElementCount < 2;
  $("duplicates").hidden = !state.engine.duplicates;
  leadTo($("duplicates"), { duplicates: true });
}

function noWords() {
  const instead = pictorial() ? "search by a picture, or start from one below" : "start from an item below";
  return `Words cannot be searched here, because this engine was trained without texts; ${instead}.`;
}

function choice(label, want) {
  const input = element("input");
  Object.assign(input, { type: "radio", name: "want", value: JSON.stringify(want) });
  return element("label", "", input, element("span", "", label));
}

// Without words to search by, a suggestion that is a label still shows what has it.
const leads = (text) => textual() || state.engine.labels?.includes(text);
const suggestion = (text) => leadTo(
  element("a", "chip", text),
  textual() ? { text } : {},
  textual() ? defaultOptions() : { ...defaultOptions(), labels: [text] },
);

export function fillControls() {
  const { ask, options: { want, unique } } = state.current;
  $("query").value = ask.text ?? "";
  $("unique").checked = unique;
  for (const input of $("direction").querySelectorAll("input")) input.checked = input.value === JSON.stringify(want);
  showSubject(ask);
  showClear();
}

// The picture or item that is searched by, in the box: words that are typed are searched together with it.
export function showSubject(ask, item = { id: ask.id, modality: ask.modality }) {
  const subject = subjectOf(ask);
  const chosen = Boolean(subject.id || subject.picture);
  $("subject").hidden = !chosen;
  $("subject-shown").replaceChildren();
  if (subject.picture) $("subject-shown").append(ownPicture(ask));
  else if (item.media) $("subject-shown").append(picture(item.media, nameOf(item), 64));
  else if (chosen) $("subject-shown").append(item.text ?? item.id);
  const type = pictorial() && !NARROW.matches ? "Type words, or drop a picture" : "Type words";
  $("query").placeholder = chosen ? "Add words" : type;
  $("query-label").textContent = chosen ? "Words to add to the picture" : "Search by words";
}

export function ownPicture(ask) {
  ask.url ??= URL.createObjectURL(ask.picture); // kept for the back button; the browser frees it with the page
  const image = element("img", "whole");
  image.src = ask.url;
  image.alt = "Your picture";
  image.addEventListener("error", () => image.remove()); // the server reads HEIC, few browsers show it
  return image;
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
  const typing = event.target.matches("input:not([type=radio], [type=checkbox]), select");
  const menu = event.target.closest(".menu[open]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("query").focus();
    $("query").select();
  } else if (event.key === "z" && !typing && (event.ctrlKey || event.metaKey)) {
    undo();
  } else if (event.key === "Escape" && menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (event.key === "Escape" && !event.target.matches("select")) {
    if (event.target === $("query")) $("query").value = "";
    else $("query").focus();
    showClear();
  } else if (event.key.startsWith("Arrow") && !event.altKey && !event.ctrlKey && !event.metaKey) {
    moveFocus(event);
  }
}

// One menu is open at a time, and a click elsewhere closes it.
export function closeMenus({ target }) {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (!menu.contains(target) || target.closest(".menu-items")) menu.open = false;
  }
}

// Cards are in the tab order; arrows are a quicker way among them, by rows and columns as they are seen.
function moveFocus(event) {
  const cards = [...document.querySelectorAll("article.card .tile")].filter((tile) => tile.checkVisibility());
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
