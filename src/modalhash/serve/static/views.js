// What the page shows: the start, a search under way, an answer, trouble.

import { bitsOf } from "./codes.js";
import { card, KINDS, nameOf, picture, showCode } from "./cards.js";
import { $, counted, element, listed, milliseconds, number, plural } from "./dom.js";
import { post, Trouble, wanted } from "./server.js";
import { leadTo, pictorial, state, textual } from "./state.js";

const SOURCES = {
  text: "Your text was coded from its features alone, as anything new is.",
  image: "Your picture was coded from its features alone, as anything new is.",
  id: "This item was asked with the code it has in the engine.",
};

function setState(name) {
  document.body.dataset.state = name;
  $("hint").hidden = name !== "start" || !pictorial();
  $("taste").hidden = name !== "start";
  $("asked").hidden = !["loading", "results", "nothing"].includes(name);
  $("legend").hidden = $("why").hidden = name !== "results";
  $("warnings").hidden = true;
  $("message").hidden = true;
  if (name !== "results") $("results").replaceChildren();
}

export function showStart() {
  setState("start");
  document.title = "modalhash";
  showTaste().catch(() => {}); // it is an ornament: where it fails, the start is as good without
  if (!state.current.ask.lost) return;
  message("The picture is gone", "A picture is kept only while its page is open. Drop it again.");
}

// What this page is for, in two lines: a word with its nearest pictures, and one of these with its nearest words.
async function showTaste() {
  if ($("taste").childElementCount || !textual() || !pictorial()) return;
  const examples = (state.engine.examples ?? []).slice(0, 4);
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
  return leadTo(row, ask);
}

export function showSkeleton() {
  setState("loading");
  say("Searching …");
  const body = () => element("span", "body", element("span", "line"), element("span", "line"), element("span", "line"));
  const blank = () => element("li", "", element("div", "card blank", element("span", "tile"), body()));
  showAsked({ modality: state.current.ask.modality }, state.current.ask);
  showCode(Array(state.engine.n_bits).fill(0)); // a code to come, so that nothing jumps when it does
  $("results").replaceChildren(...Array.from({ length: Math.min(state.current.k, 12) }, blank));
}

export function showAnswer({ answer, ask, scroll }) {
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
  const where = answer.want ?? wanted(state.current);
  const items = where.length === 1 ? counted(answer.searched, where[0]) : `${number(answer.searched)} items`;
  const found = answer.hits.length ? `${number(answer.hits.length)} nearest of ${items}` : `Nothing among ${items}`;
  return `${found} · ${answer.n_bits} bits · ${milliseconds(answer.milliseconds)}`;
}

function explanation(query) {
  const kinds = listed(Object.keys(state.engine.modalities).map(plural));
  return [
    `${SOURCES[query.kind]} Its code is compared with every other, bit by bit: the fewer bits differ, the nearer.`,
    state.engine.paired ? "" : `Nobody told the engine which ${kinds} belong together: they were never paired.`,
    ...Object.values(KINDS).map((text) => `${text}.`),
  ].filter(Boolean);
}

export function say(text) {
  if ($("summary").textContent !== text) $("summary").textContent = text; // screen readers announce each change
}

function message(title, text, ...actions) {
  $("message").replaceChildren(element("h2", "", title), element("p", "", text), ...actions);
  $("message").hidden = false;
}

export function showTrouble(error, retry) {
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
