// What the page shows: the start, a search under way, an answer, duplicates, trouble.

import { bitsOf, strip } from "./codes.js";
import { card, KIND_MEANINGS, nameOf, picture, ranksOf, surelyShared, titleOf } from "./cards.js";
import { showDirection } from "./controls.js";
import { $, counted, element, listed, milliseconds, number, percent, plural } from "./dom.js";
import { addGroups, groupSections, summaryOfGroups } from "./duplicates.js";
import { filtered, showFilterError } from "./filters.js";
import { post, Trouble, wanted } from "./server.js";
import { leadTo, modalities, pictorial, state, textual } from "./state.js";
import { closeViewer, openViewer } from "./viewer.js";

const SOURCES = {
  text: "Your text was coded from its features alone, as anything new is.",
  image: "Your picture was coded from its features alone, as anything new is.",
  id: "This item was asked with the code it has in the engine.",
};
const MOST_NAMED = 8; // shared labels, in the sentence about all hits

function setState(name) {
  closeViewer();
  document.body.dataset.state = name;
  $("hint").hidden = name !== "start" || !pictorial();
  $("taste").hidden = name !== "start";
  $("asked").hidden = !["loading", "results", "nothing", "duplicates"].includes(name);
  $("why").hidden = name !== "results";
  $("warnings").hidden = true;
  $("message").hidden = true;
  $("more").hidden = true;
  if (name !== "results") $("results").replaceChildren();
  if (name !== "duplicates") $("groups").replaceChildren();
  showDirection();
}

export function showStart() {
  setState("start");
  document.title = "modalhash";
  showTaste().catch(() => {}); // it is an ornament: where it fails, the start is as good without
  if (!state.current.ask.lost) return;
  message("The picture is gone", "This browser no longer has it. Give it again.");
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
    tasteRow(byFirst, small(first), texts.map((hit) => said(titleOf(hit)))),
  );
}

function tasteRow(ask, shown, found) {
  const row = element("a", "taste-row", shown, element("span", "arrow", "→"), element("span", "found", ...found));
  return leadTo(row, ask);
}

export function showSkeleton() {
  const { ask, options } = state.current;
  setState("loading");
  say("Searching …");
  const body = () => element("div", "body", element("span", "line"), element("span", "line"), element("span", "line"));
  const blank = () => element("li", "", element("div", "card blank", element("span", "tile"), body()));
  showAsked({ modality: ask.modality }, ask);
  $("results").replaceChildren(...Array.from({ length: Math.min(options.k, 12) }, blank));
}

export function showAnswer({ answer, ask, options, scroll }) {
  if (ask.duplicates) return showDuplicates(answer, scroll);
  const { hits, query } = answer;
  const bits = bitsOf(query.code, answer.n_bits);
  setState(hits.length ? "results" : "nothing");
  showAsked(query, ask);
  say(summary(answer));
  $("why-text").replaceChildren(...explanation(answer).map((text) => element("p", "", text)));
  $("why-code").replaceChildren(element("span", "reason", "Your query’s code"), strip(bits));
  warn([answer.message, ...(answer.warnings ?? [])]);
  $("results").classList.toggle("texts", hits.every((hit) => !hit.media));
  const ranks = ranksOf(hits);
  $("results").replaceChildren(
    ...hits.map((hit, i) => card(hit, answer, { compared: bits, rank: ranks[i], open: openViewer })),
  );
  if (!hits.length && filtered(options)) {
    message("Nothing found", "Nothing passes the filters. Remove one of them.");
  } else if (!hits.length) {
    message("Nothing found", "There is nothing here to look through. Look in another kind.");
  }
  scrollTo(0, scroll ?? 0);
}

// Groups of items that are the same, or nearly.
function showDuplicates(answer, scroll) {
  setState("duplicates");
  $("results").replaceChildren();
  showHeading("Items that are the same, or nearly", "Duplicates");
  warn([answer.message]);
  say(summaryOfGroups(answer));
  $("groups").replaceChildren(...groupSections(answer));
  $("more").hidden = !answer.more;
  $("more").firstChild.onclick = () => showMoreGroups(answer);
  if (!answer.groups.length) message("No duplicates", "No two items are the same, or nearly.");
  scrollTo(0, scroll ?? 0);
}

async function showMoreGroups(answer) {
  const button = $("more").firstChild;
  const before = answer.groups.length;
  button.disabled = true;
  try {
    await addGroups(answer);
  } catch (error) {
    if (state.current.answer === answer) showTrouble(error, () => showDuplicates(answer));
    return;
  } finally {
    button.disabled = false;
  }
  if (state.current.answer !== answer) return; // somebody went elsewhere meanwhile
  const sections = groupSections(answer, before);
  $("groups").append(...sections);
  $("more").hidden = !answer.more;
  say(summaryOfGroups(answer));
  sections[0]?.querySelector(".tile").focus();
}

function showAsked(query, ask) {
  const text = ask.text ? `“${ask.text}”` : ask.picture ? ask.picture.name || "picture" : titleOf({ ...query, id: ask.id ?? "" });
  const what = query.modality === pictorial() ? "a picture" : `a ${query.modality ?? "thing"}`;
  const chose = [`You chose ${what}`, ...(query.labels ?? [])].join(" · ");
  const how = ask.text ? "You typed" : ask.picture ? "You gave a picture" : chose;
  showHeading(how, text);
  if (ask.picture) $("asked").prepend(element("span", "asked-picture paper", ownPicture(ask)));
  else if (query.media) $("asked").prepend(element("span", "asked-picture paper", picture(query.media, nameOf(query), 128)));
  $("asked").classList.toggle("typed", Boolean(ask.text)); // a phone shows it in the box alone
}

function showHeading(how, text) {
  const title = element("span", "asked-text", text);
  title.dir = "auto";
  $("asked").replaceChildren(element("div", "asked-words", element("span", "asked-how", how), title));
  $("asked").classList.remove("typed");
  document.title = `${text} – modalhash`;
}

function ownPicture(ask) {
  ask.url ??= URL.createObjectURL(ask.picture); // kept for the back button; the browser frees it with the page
  const image = element("img", "whole");
  image.src = ask.url;
  image.alt = "Your picture";
  image.addEventListener("error", () => image.parentElement?.remove()); // the server reads HEIC, few browsers show it
  return image;
}

function summary(answer) {
  const where = answer.want ?? wanted(state.current);
  const items = where.length === 1 ? counted(answer.searched, where[0]) : `${number(answer.searched)} items`;
  const found = answer.hits.length ? `${number(answer.hits.length)} nearest of ${items}` : `Nothing among ${items}`;
  return `${found} · ${answer.n_bits} bits · ${milliseconds(answer.milliseconds)}`;
}

function explanation(answer) {
  const { query } = answer;
  const kinds = listed(modalities().map(plural));
  const { known, hits } = answer;
  const ordered = answer.refine && hits.some((hit) => typeof hit.score === "number");
  const byWords = hits.filter((hit) => hit.found_by?.includes("words")).length;
  return [
    sharedLabels(hits),
    typeof known === "number" && known < 1 ? `The engine knows ${percent(known)} of your words.` : "",
    `${SOURCES[query.kind]} Its code is compared with every other, bit by bit: the more bits agree, the nearer.`,
    ordered ? "Finer vectors then put what is about equally near into order." : "",
    byWords ? `${byWords === hits.length ? "All" : `${byWords} of ${hits.length}`} contain words of your query.` : "",
    state.engine.paired ? "" : `Nobody told the engine which ${kinds} belong together: they were never paired.`,
    ...Object.values(KIND_MEANINGS).map((text) => `${text}.`),
  ].filter(Boolean);
}

// The labels that the query's code and the hits' codes share, in words.
function sharedLabels(hits) {
  const counts = new Map();
  for (const label of hits.flatMap((hit) => hit.shared_labels ?? [])) counts.set(label, (counts.get(label) ?? 0) + 1);
  const named = [...counts].sort(([, one], [, other]) => other - one).slice(0, MOST_NAMED);
  if (!named.length) return "";
  const parts = named.map(([label, n]) => `${label} (${n === hits.length ? "all" : `${n} of ${hits.length}`})`);
  const sure = hits.some((hit) => hit.shared_labels?.length && surelyShared(hit));
  return `Your query and these ${sure ? "" : "may "}have labels in common: ${listed(parts)}.`;
}

// What to know before looking at the hits, each thing once.
function warn(texts) {
  const different = [...new Set(texts.filter(Boolean))];
  $("warnings").hidden = !different.length;
  $("warnings").replaceChildren(...different.map((text) => element("li", "", text)));
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
  if (error.filter) {
    say("Nothing was searched: the filter needs a change.");
    return showFilterError(error.filter.box, error.filter.text);
  }
  if (error.status === 401) return message(title, error.message, tokenForm(retry));
  if (error.badFile && state.current?.ask.picture) {
    return message(title, error.message, button("Choose another picture", () => $("pick").click()));
  }
  return message(title, error.message, ...(error.retry ? [button("Try again", retry)] : []));
}

function button(text, act) {
  const node = element("button", "again", text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
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
