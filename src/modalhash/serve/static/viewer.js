// One item, large, in a dialog: Escape, the button or a click beside it closes it, and the focus goes back to the card.

import { itemLinks, picture, titleOf } from "./cards.js";
import { $, element, plural } from "./dom.js";
import { labelsOf } from "./labels.js";

const LARGEST = 1024; // pixels of a side: the server's largest

let relabelled = false; // since the dialog was opened

export function openViewer(hit) {
  relabelled = false;
  const title = titleOf(hit);
  const shown = hit.media
    ? element("div", "viewer-picture paper", picture(hit.media, title, LARGEST / 2))
    : element("p", "viewer-text", hit.text ?? hit.id);
  const heading = element("h2", "", hit.media ? title : `One of the ${plural(hit.modality)}`);
  heading.id = "viewer-title";
  for (const node of [heading, shown]) node.dir = "auto";
  $("viewer-content").replaceChildren(heading, shown, labelsOf(hit, () => { relabelled = true; }), itemLinks(hit));
  if (hit.media) {
    const file = element("a", "", "Open the file");
    Object.assign(file, { href: hit.media, target: "_blank", rel: "noopener" });
    $("viewer-content").lastChild.append(file);
  }
  $("viewer").showModal();
}

export function closeViewer() {
  if ($("viewer").open) $("viewer").close();
}

// What lies behind shows the old labels, and may be in another order by now.
$("viewer").addEventListener("close", () => {
  if (relabelled) document.dispatchEvent(new CustomEvent("relabelled"));
  relabelled = false;
});

$("viewer").addEventListener("click", ({ target }) => {
  if (target === $("viewer") || target.closest(".viewer-close")) closeViewer();
});
