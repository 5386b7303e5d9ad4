// One item, large, in a dialog: Escape, the button or a click outside closes it, and the focus goes back to the card.

import { everyAction, nameOf, picture, takenLine, titleNode } from "./cards.js";
import { $, element, plural } from "./dom.js";
import { labelsOf } from "./labels.js";
import { call } from "./server.js";

const LARGEST = 1024; // pixels of a side: the server's largest

let relabelled = false; // since the dialog was opened

export function openViewer(hit) {
  relabelled = false;
  const shown = hit.media
    ? element("div", "viewer-picture paper", picture(hit.media, nameOf(hit), LARGEST / 2))
    : element("p", "viewer-text", hit.text ?? hit.id);
  const heading = hit.media ? titleNode("h2", "", hit) : element("h2", "", `One of the ${plural(hit.modality)}`);
  heading.id = "viewer-title";
  if (hit.media) heading.setAttribute("aria-label", nameOf(hit));
  shown.dir = "auto";
  const taken = element("p", "taken", takenLine(hit));
  taken.hidden = !taken.textContent;
  $("viewer-content").replaceChildren(heading, shown, taken, labelsOf(hit, () => { relabelled = true; }), everyAction(hit));
  $("viewer").showModal();
  if (!hit.media && hit.text_truncated) showWhole(hit, shown);
}

// Lists have only the beginning of a long text; it stays if the rest cannot be had.
async function showWhole({ id, modality }, shown) {
  const whole = await call(`/items/${encodeURIComponent(id)}?modality=${encodeURIComponent(modality)}`).catch(() => null);
  shown.textContent = whole?.text ?? `${shown.textContent} …`;
}

export function closeViewer() {
  if ($("viewer").open) $("viewer").close();
}

// The cards behind it show the old labels, and may be in another order by now.
$("viewer").addEventListener("close", () => {
  if (relabelled) document.dispatchEvent(new CustomEvent("relabelled"));
  relabelled = false;
});

$("viewer").addEventListener("click", ({ target }) => {
  if (target === $("viewer") || target.closest(".viewer-close")) closeViewer();
});
document.addEventListener("removed", closeViewer);
