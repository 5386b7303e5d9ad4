// What the page shows: items to look at, a search in progress, an answer, duplicates, trouble.

import { bitsOf } from "./codes.js";
import { card, inCommon, looksLike, nameOf, picture, ranksOf, titleNode, titleOf } from "./cards.js";
import { ownPicture, showDirection, showSubject } from "./controls.js";
import { $, button, counted, element, fileName, isFileName, listed, milliseconds, number, percent, plural } from "./dom.js";
import { addGroups, groupSections, summaryOfGroups } from "./duplicates.js";
import { filtered, showFilterError } from "./filters.js";
import { addItems, galleryCards, summaryOfGallery } from "./gallery.js";
import { hideRemoved } from "./removal.js";
import { Trouble } from "./server.js";
import { filled, pictorial, state, wanted } from "./state.js";
import { closeViewer, openViewer } from "./viewer.js";

const SOURCES = {
  text: "What you typed was compared with what the items show or say.",
  image: "What your picture shows was compared with what the items show or say.",
  id: "What this item shows or says was compared with all others.",
};
// The start grows while a person scrolls.
const watcher = new IntersectionObserver((seen) => {
  if (seen.at(-1).isIntersecting && document.body.dataset.state === "start") $("more").firstChild.click();
}, { rootMargin: "600px" });
const MOST_NAMED = 8; // shared labels, in the sentence about all hits

function setState(name) {
  closeViewer();
  document.body.dataset.state = name;
  $("asked").hidden = !["loading", "results", "nothing", "duplicates"].includes(name);
  $("why").hidden = name !== "results";
  for (const id of ["warnings", "read-as", "message", "more"]) $(id).hidden = true;
  if (name !== "results" && name !== "start") $("results").replaceChildren();
  if (name !== "duplicates") $("groups").replaceChildren();
  $("results").classList.toggle("gallery", name === "start");
  $("results").setAttribute("aria-label", name === "start" ? "Newest items" : "Results");
  showDirection();
}

// What there is to look at before anything is searched.
function showGallery(entry) {
  const { answer, options, scroll } = entry;
  setState("start");
  document.title = "modalhash";
  say(summaryOfGallery(answer, entry));
  $("results").classList.toggle("texts", answer.items.every((item) => !item.media));
  $("results").replaceChildren(...galleryCards(answer));
  hideRemoved();
  offerMore(answer, "More", () => showMoreItems(entry));
  if (entry.ask.lost) message("The picture is gone", "This browser no longer has it. Give it again.");
  else if (!answer.items.length && filtered(options)) message("Nothing found", "Nothing passes the filters. Remove one of them.");
  else if (!answer.items.length) message("Nothing here yet", "Add some with “modalhash add”, and load this page again.");
  scrollTo(0, scroll ?? 0);
}

async function showMoreItems(entry) {
  const before = entry.answer.items.length;
  if (!(await loadMore(() => addItems(entry), entry))) return;
  const cards = galleryCards(entry.answer, before);
  const byKey = document.activeElement === $("more").firstChild;
  $("results").append(...cards);
  hideRemoved();
  offerMore(entry.answer, "More", () => showMoreItems(entry));
  if (byKey) cards[0]?.querySelector(".tile").focus({ preventScroll: true });
}

function offerMore({ more }, text, act) {
  $("more").hidden = !more;
  $("more").firstChild.textContent = text;
  $("more").firstChild.onclick = act;
  watcher.unobserve($("more"));
  watcher.observe($("more")); // tells once more whether it is in sight
}

// Load what comes after an answer; false if that failed, or somebody went elsewhere meanwhile.
async function loadMore(load, entry) {
  const more = $("more").firstChild;
  if (more.disabled) return false;
  more.disabled = true;
  try {
    await load();
  } catch (error) {
    if (state.current === entry) showTrouble(error, () => showAnswer(entry));
    return false;
  } finally {
    more.disabled = false;
  }
  return state.current === entry;
}

export function showSkeleton() {
  const { ask, options } = state.current;
  setState("loading");
  say("Searching …");
  const body = () => element("div", "body", element("span", "line"), element("span", "line"), element("span", "line"));
  const blank = () => element("li", "", element("div", "card blank", element("span", "tile"), body()));
  if (ask.text || ask.id || ask.picture) showAsked({ modality: ask.modality }, ask);
  else $("asked").hidden = true;
  $("results").replaceChildren(...Array.from({ length: Math.min(options.k, 12) }, blank));
}

export function showAnswer(entry) {
  const { answer, ask, options, scroll } = entry;
  if (ask.duplicates) return showDuplicates(entry);
  if (answer.items) return showGallery(entry);
  const { hits, query } = answer;
  const bits = bitsOf(query.code, answer.n_bits);
  setState(hits.length ? "results" : "nothing");
  showAsked(query, ask);
  showSubject(ask, { ...query, id: ask.id });
  say(summary(answer));
  $("why-text").replaceChildren(...explanation(answer).map((text) => element("p", "", text)));
  warn([answer.message, ...(answer.warnings ?? [])]);
  const readAs = Object.entries(answer.read_as ?? {});
  $("read-as").hidden = !readAs.length;
  $("read-as").textContent = readAs.map(([word, other]) => `${word}: read as ${other}`).join("; ");
  $("results").classList.toggle("texts", hits.every((hit) => !hit.media));
  const ranks = ranksOf(hits);
  $("results").replaceChildren(
    ...hits.map((hit, i) => card(hit, answer, { compared: bits, rank: ranks[i], open: openViewer })),
  );
  hideRemoved();
  if (!hits.length && filtered(options)) {
    message("Nothing found", "Nothing passes the filters. Remove one of them.");
  } else if (!hits.length) {
    message("Nothing found", "There is nothing here to look through.");
  }
  scrollTo(0, scroll ?? 0);
}

// Groups of items that are the same, or nearly.
function showDuplicates(entry) {
  const { answer, scroll } = entry;
  setState("duplicates");
  $("results").replaceChildren();
  showHeading("Items that are the same, or nearly", element("span", "", "Duplicates"));
  warn([answer.message]);
  say(summaryOfGroups(answer));
  $("groups").replaceChildren(...groupSections(answer));
  hideRemoved();
  offerMore(answer, "More groups", () => showMoreGroups(entry));
  if (!answer.groups.length) message("No duplicates", "No two items are the same, or nearly.");
  scrollTo(0, scroll ?? 0);
}

async function showMoreGroups(entry) {
  const { answer } = entry;
  const before = answer.groups.length;
  if (!(await loadMore(() => addGroups(answer), entry))) return;
  const sections = groupSections(answer, before);
  $("groups").append(...sections);
  hideRemoved();
  offerMore(answer, "More groups", () => showMoreGroups(entry));
  say(summaryOfGroups(answer));
  sections[0]?.querySelector(".tile").focus();
}

function showAsked(query, ask) {
  const what = query.modality === pictorial() ? "a picture" : `a ${query.modality ?? "thing"}`;
  const chose = ask.picture ? "You gave a picture" : [`You chose ${what}`, ...(query.labels ?? [])].join(" · ");
  const subject = ask.picture || ask.id;
  const typed = ask.text && element("span", "", `“${ask.text}”`);
  showHeading(!subject ? "You typed" : typed ? "A picture and words" : chose, typed || nameNode(query, ask));
  if (ask.picture) $("asked").prepend(element("span", "asked-picture paper", ownPicture(ask)));
  else if (query.media) $("asked").prepend(element("span", "asked-picture paper", picture(query.media, nameOf(query), 128)));
  $("asked").classList.toggle("typed", !subject); // a phone shows it in the box alone
}

function nameNode(query, ask) {
  if (!ask.picture) return titleNode("span", "", { ...query, id: ask.id ?? "" });
  const name = ask.picture.name || "picture";
  return isFileName(name) ? fileName("span", "", name) : element("span", "", name);
}

function showHeading(how, title) {
  title.classList.add("asked-text");
  title.dir = "auto";
  $("asked").replaceChildren(element("div", "asked-words", element("span", "asked-how", how), title));
  $("asked").classList.remove("typed");
  document.title = `${title.textContent} – modalhash`;
}

function summary(answer) {
  const where = answer.want ?? wanted(state.current);
  const items = where.length === 1 ? counted(answer.searched, where[0]) : `${number(answer.searched)} items`;
  const found = answer.hits.length ? `${number(answer.hits.length)} nearest of ${items}` : `Nothing among ${items}`;
  return `${found} · ${milliseconds(answer.milliseconds)}`;
}

function explanation({ query, known, hits }) {
  const byWords = hits.filter((hit) => hit.found_by?.includes("words")).length;
  return [
    sharedLabels(hits),
    typeof known === "number" && known < 1 ? `The engine knows ${percent(known)} of your words.` : "",
    SOURCES[query.kind] ?? SOURCES.id,
    byWords ? `${byWords === hits.length ? "All" : `${byWords} of ${hits.length}`} contain words of your query.` : "",
    state.engine.paired || filled().length < 2 ? "" : `The engine does not know which ${listed(filled().map(plural))} belong together, because they were never paired.`,
    "“Details” of an item shows the codes by which it was compared.",
  ].filter(Boolean);
}

// The labels that the query shares with the hits, in words.
function sharedLabels(hits) {
  const counts = new Map();
  for (const label of hits.flatMap((hit) => [...inCommon(hit), ...looksLike(hit)])) counts.set(label, (counts.get(label) ?? 0) + 1);
  const named = [...counts].sort(([, one], [, other]) => other - one).slice(0, MOST_NAMED);
  if (!named.length) return "";
  const parts = named.map(([label, n]) => `${label} (${n === hits.length ? "all" : `${n} of ${hits.length}`})`);
  const guessed = hits.some((hit) => looksLike(hit).length);
  return `Your query and these have labels in common${guessed ? ", or seem to" : ""}: ${listed(parts)}.`;
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
  if (!error.retry) $("subject").hidden = true; // what was refused is not searched by again
  say("");
  document.title = `${title} – modalhash`;
  if (error.filter) {
    say("Nothing was searched: the filter needs a change.");
    return showFilterError(state.current.options.where ? error.filter.box : "label", error.filter.text);
  }
  if (error.status === 401) return message(title, error.message, tokenForm(retry));
  if (error.badFile && state.current?.ask.picture) {
    return message(title, error.message, button("again", "Choose another picture", () => $("pick").click()));
  }
  return message(title, error.message, ...(error.retry ? [button("again", "Try again", retry)] : []));
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

document.addEventListener("removed", () => {
  if (document.body.dataset.state === "start") say(summaryOfGallery(state.current.answer, state.current));
});
