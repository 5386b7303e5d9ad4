// Codes as bits, and bits as pictures.

import { listed } from "./dom.js";

export function bitsOf(hex, n) {
  const bits = [];
  for (let i = 0; i < n; i++) bits.push((Number.parseInt(hex[i >> 2], 16) >> (3 - (i & 3))) & 1);
  return bits;
}

// One bar per bit: dark for 1, light for 0; where it differs from `other` longer and in the accent colour, full for 1
// and hollow for 0; `whose` the other is, is told to those who do not see it. Three paths, not a node per bit: a page may show 200 codes of 256 bits.
export function strip(bits, other, whose) {
  const columns = Math.min(bits.length, bits.length > 128 ? 64 : 32);
  const rows = Math.ceil(bits.length / columns);
  const high = rows > 2 ? 20 : 32; // of a bar that differs; the others leave a quarter of it
  const paths = { one: "", zero: "", differs: "" };
  const different = [];
  bits.forEach((bit, i) => {
    const column = i % columns;
    const x = column * 10 + Math.floor(column / 8) * 5; // a gap after each byte, for the eye to count by
    const y = Math.floor(i / columns) * (high + 8);
    if (other && other[i] !== bit) {
      different.push(i + 1);
      paths.differs += `M${x} ${y}h8v${high}h-8z` + (bit ? "" : `m2 2v${high - 4}h4v${4 - high}z`);
    } else {
      paths[bit ? "one" : "zero"] += `M${x} ${y + high / 8}h8v${high * 0.75}h-8z`;
    }
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const width = columns * 10 + (Math.ceil(columns / 8) - 1) * 5 - 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${rows * (high + 8) - 8}`);
  svg.setAttribute("class", "strip");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", other ? differenceInWords(different, whose) : `Code of ${bits.length} bits: ${bits.join("")}`);
  for (const [name, path] of Object.entries(paths)) {
    const node = document.createElementNS(svg.namespaceURI, "path");
    node.setAttribute("class", name);
    node.setAttribute("fill-rule", "evenodd");
    node.setAttribute("d", path);
    svg.append(node);
  }
  return svg;
}

function differenceInWords(positions, whose) {
  if (!positions.length) return `The code equals ${whose}’s`;
  const some = positions.slice(0, 16);
  const rest = positions.length - some.length;
  return `Differs from ${whose} in bit ${listed([...some, ...(rest ? [`${rest} more`] : [])].map(String))}`;
}
