// Renders /openapi.json. Everything is put in as text, never as HTML.
"use strict";

const METHODS = ["get", "post", "delete", "put", "patch"];

function make(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

function nameOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(nameOf).filter((name) => name !== "null").join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.type === "array") return `list of ${nameOf(schema.items)}`;
  if (schema.format === "binary" || schema.contentMediaType) return "file";
  return schema.type || "anything";
}

function boundsOf(schema) {
  const parts = [schema, ...(schema.anyOf || [])];
  const found = [];
  for (const one of parts) {
    if (one.minimum !== undefined) found.push(`≥ ${one.minimum}`);
    if (one.maximum !== undefined) found.push(`≤ ${one.maximum}`);
    if (one.maxLength !== undefined) found.push(`at most ${one.maxLength} characters`);
    if (one.maxItems !== undefined) found.push(`at most ${one.maxItems}`);
  }
  if (schema.default !== undefined && schema.default !== null) found.push(`default ${JSON.stringify(schema.default)}`);
  return found.join(", ");
}

function table(heads, rows) {
  const body = make("tbody", "", ...rows.map((row) => make("tr", "", ...row.map((cell) => make("td", cell)))));
  return make("table", "", make("thead", "", make("tr", "", ...heads.map((head) => make("th", head)))), body);
}

function fieldsOf(schema) {
  const needed = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, one]) => [
    name + (needed.has(name) ? " *" : ""), nameOf(one), boundsOf(one), one.description || "",
  ]);
  return table(["field", "type", "bounds", ""], rows);
}

function curlOf(method, path, operation) {
  const url = `${location.origin}${path.replace("{id}", "ID")}`;
  const verb = method === "get" || method === "post" ? "" : ` -X ${method.toUpperCase()}`;
  const content = operation.requestBody ? operation.requestBody.content : {};
  const lines = [];
  if (content["application/json"]) {
    lines.push(`curl${verb} ${url} -H 'Content-Type: application/json' -d '{"text": "red boat"}'`);
  }
  if (content["multipart/form-data"]) lines.push(`curl${verb} ${url} -F image=@photo.jpg`);
  return (lines.length ? lines : [`curl${verb} ${url}`]).join("\n");
}

function operationOf(method, path, operation) {
  const verb = make("span", method.toUpperCase());
  verb.className = "method";
  const what = make("span", operation.description || operation.summary || "");
  what.className = "what";
  const inside = make("div", "", make("pre", curlOf(method, path, operation)));
  const parameters = (operation.parameters || []).map((one) => [
    one.name, `${one.in}, ${nameOf(one.schema)}`, boundsOf(one.schema), one.description || "",
  ]);
  if (parameters.length) inside.append(make("h3", "Parameters"), table(["name", "type", "bounds", ""], parameters));
  for (const [type, { schema }] of Object.entries(operation.requestBody ? operation.requestBody.content : {})) {
    for (const one of schema.oneOf || [schema]) inside.append(make("h3", `${one.description} (${type})`), fieldsOf(one));
  }
  const answers = Object.entries(operation.responses).map(([status, answer]) => [
    status, Object.entries(answer.content || {}).map(([type, one]) => nameOf(one.schema) === "anything" ? type : nameOf(one.schema) || type).join(", "),
    answer.description || "",
  ]);
  inside.append(make("h3", "Answers"), table(["status", "what", ""], answers));
  return make("details", "", make("summary", "", verb, make("code", path), what), inside);
}

async function show() {
  const operations = document.getElementById("operations");
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error((await answer.json()).error);
    const api = await answer.json();
    document.getElementById("version").textContent = api.info.version;
    document.getElementById("about").textContent = api.info.description;
    operations.replaceChildren();
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const method of METHODS) if (methods[method]) operations.append(operationOf(method, path, methods[method]));
    }
    for (const [name, schema] of Object.entries(api.components.schemas)) {
      const what = make("span", schema.description || "");
      what.className = "what";
      const summary = make("summary", "", make("code", name), what);
      document.getElementById("schemas").append(make("details", "", summary, make("div", "", fieldsOf(schema))));
    }
  } catch (error) {
    operations.textContent = `The description cannot be shown: ${error.message}`;
  }
}

show();
