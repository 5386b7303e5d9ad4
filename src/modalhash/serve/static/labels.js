// The labels of an item and, if the service is writable, a form that changes them. Searches use them immediately.

import { labelList } from "./cards.js";
import { element, listed } from "./dom.js";
import { call } from "./server.js";
import { state } from "./state.js";

// `changed` is called when the service has other labels for the item than the page shows elsewhere.
export function labelsOf(hit, changed) {
  const part = element("div", "item-labels");
  const show = (said = "") => {
    const status = element("p", "item-labels-said", said);
    status.setAttribute("role", "status");
    status.hidden = !said;
    part.replaceChildren(labelList(hit.labels), status);
    if (!state.engine.writable || hit.labels_truncated) return;
    const button = element("button", "label-add", hit.labels.length ? "Change labels" : "Give labels");
    button.type = "button";
    button.addEventListener("click", () => edit());
    part.append(button);
    if (said) button.focus();
  };
  const edit = () => {
    part.replaceChildren(labelForm(hit, (answer) => {
      Object.assign(hit, answer.relabelled[0]);
      changed();
      show(sayWhatFollows(hit, answer.unknown_labels));
    }, () => show()));
    part.querySelector("input").focus();
  };
  show();
  return part;
}

function sayWhatFollows({ kind, labels }, unknown) {
  if (!labels.length) return "Saved. Without labels, searches go by what it shows or says.";
  const found = kind === "learned" ? "Searches go by its labels now." : "Searches go by what it shows or says.";
  if (!unknown.length) return `Saved. ${found}`;
  const names = listed(unknown.map((label) => `“${label}”`));
  return `Saved. ${found} New to this engine: ${names}; filters find that now, other searches after “modalhash retrain”.`;
}

function labelForm(hit, saved, cancelled) {
  const labels = hit.labels.map(String);
  const input = element("input");
  Object.assign(input, { autocomplete: "off", spellcheck: false, maxLength: 200, placeholder: "Add a label" });
  input.setAttribute("list", "known-labels");
  input.setAttribute("aria-label", "Add a label");
  const list = element("ul", "labels edited");
  const error = element("p", "field-error");
  error.setAttribute("role", "alert");
  error.hidden = true;
  const draw = () => list.replaceChildren(...labels.map((label, place) => {
    const off = element("button", "label-off", "×");
    off.type = "button";
    off.setAttribute("aria-label", `Take off ${label}`);
    off.addEventListener("click", () => {
      labels.splice(place, 1);
      draw();
      input.focus(); // the button that had the focus is gone
    });
    return element("li", "label", label, off);
  }));
  const add = () => {
    const label = input.value.trim();
    input.value = "";
    if (label && !labels.includes(label)) labels.push(label);
    draw();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && input.value.trim()) {
      event.preventDefault(); // with an empty box it saves
      add();
    }
  });
  const adding = element("button", "label-add", "Add");
  const cancel = element("button", "label-add", "Cancel");
  for (const button of [adding, cancel]) button.type = "button";
  adding.addEventListener("click", () => {
    add();
    input.focus();
  });
  cancel.addEventListener("click", cancelled);
  const save = element("button", "go", "Save");
  const form = element("form", "label-form", list, element("div", "label-row", input, adding), error,
    element("div", "label-row", save, cancel));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    add(); // what was typed and not added yet is meant too
    save.disabled = true;
    const path = `/items/${encodeURIComponent(hit.id)}?modality=${encodeURIComponent(hit.modality)}`;
    const headers = { "Content-Type": "application/json" };
    try {
      saved(await call(path, { method: "PATCH", headers, body: JSON.stringify({ labels }) }));
    } catch (trouble) {
      error.textContent = trouble.message;
      error.hidden = false;
      save.disabled = false;
    }
  });
  draw();
  return form;
}
