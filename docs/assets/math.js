// Renders the formulas that pymdownx.arithmatex marked, with the KaTeX that lies beside this file.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const text = formula.textContent.trim();
  katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\["), throwOnError: false });
}
