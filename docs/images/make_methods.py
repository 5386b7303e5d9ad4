"""Draws the figures of "How AMSH works" and "How RLH works".

python docs/images/make_methods.py

Drawings of boxes are made here; curves are computed by the package, on synthetic data and with a fixed seed.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#78909c"
STYLE = """
  text { font: 15px sans-serif; fill: #263238 } .small { font-size: 13px; fill: #546e7a } .head { font-weight: 600 }
  .box { fill: #f4faf9; stroke: #00796b; stroke-width: 1.5 } .line { stroke: #78909c; stroke-width: 1.6; fill: none }
  .mono { font-family: monospace; font-size: 14px }
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#78909c"/></marker></defs>'
)


class Drawing:
    """Shapes of an SVG, collected."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{title}"><title>{title}</title>',
            f"<style>{STYLE}</style>{TIP}",
        ]

    def box(self, x: float, y: float, width: float, height: float, *lines: str) -> None:
        """Draw a box with lines of text in its middle; the first is its heading."""
        self.parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>')
        top = y + height / 2 - 10 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 20 * number, line, "head" if number == 0 else "small", "middle")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')

    def arrow(self, *points: tuple[float, float]) -> None:
        path = "L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="line" d="M{path}" marker-end="url(#tip)"/>')

    def cell(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" stroke="#fff" stroke-width="1"/>'
        )

    def svg(self) -> bytes:
        return "\n".join([*self.parts, "</svg>\n"]).encode()


def two_steps() -> bytes:
    """Draw what goes in and what comes out of the two steps."""
    drawing = Drawing(900, 330, "Labels make codes in step 1; features learn to predict them in step 2")
    drawing.text(20, 28, "What you have", "head")
    drawing.box(20, 45, 190, 100, "photos", "features (n × d)", "labels (n × classes)")
    drawing.box(20, 200, 190, 100, "texts", "features (m × e)", "labels (m × classes)")
    drawing.text(115, 178, "not paired; n and m differ", "small", "middle")
    drawing.text(290, 28, "Step 1: labels to codes", "head")
    drawing.box(
        290, 115, 220, 110, "codes B of all items", "similar labels, similar codes,", "within and across modalities"
    )
    drawing.arrow((210, 95), (285, 145))
    drawing.arrow((210, 250), (285, 195))
    drawing.text(250, 100, "labels", "small", "middle")
    drawing.text(590, 28, "Step 2: features to codes", "head")
    drawing.box(590, 45, 200, 100, "functions of photos", "sgn(φ(x) F)")
    drawing.box(590, 200, 200, 100, "functions of texts", "sgn(φ(x) F)")
    drawing.arrow((510, 150), (585, 100))
    drawing.arrow((510, 190), (585, 245))
    drawing.arrow((790, 95), (870, 95))
    drawing.arrow((790, 250), (870, 250))
    drawing.text(830, 85, "new photo", "small", "middle")
    drawing.text(830, 240, "new text", "small", "middle")
    drawing.text(700, 178, "one modality at a time", "small", "middle")
    return drawing.svg()


def patterns() -> bytes:
    """Draw items with few distinct label rows, and the rows with their counts."""
    names = ["boat", "sea", "city", "night"]
    kinds = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]])
    order = np.random.default_rng(4).choice(4, size=16, p=[0.4, 0.2, 0.25, 0.15])
    found, counts = np.unique(order, return_counts=True)
    colours = {int(kind): colour for kind, colour in zip(found, [BLUE, GREEN, ORANGE, "#cc79a7"], strict=False)}
    drawing = Drawing(900, 420, "Sixteen items have four distinct label rows, which stand for them with their counts")
    drawing.text(60, 28, "Items: one row each", "head")
    for column, name in enumerate(names):
        drawing.text(60 + 62 * column + 29, 52, name, "small", "middle")
        drawing.text(520 + 62 * column + 29, 132, name, "small", "middle")
    for row, kind in enumerate(order):
        for column in range(4):
            drawing.cell(
                60 + 62 * column, 62 + 21 * row, 58, 18, colours[int(kind)] if kinds[kind, column] else "#eceff1"
            )
    drawing.arrow((330, 230), (495, 230))
    drawing.text(412, 205, "items with the same labels", "small", "middle")
    drawing.text(412, 255, "share one row", "small", "middle")
    drawing.text(520, 108, "Label patterns: one row each, weighted", "head")
    for row, (kind, count) in enumerate(zip(found, counts, strict=True)):
        for column in range(4):
            drawing.cell(
                520 + 62 * column, 145 + 40 * row, 58, 30, colours[int(kind)] if kinds[kind, column] else "#eceff1"
            )
        drawing.text(785, 165 + 40 * row, f"× {count}", "head")
    drawing.text(520, 345, "The same algorithm, on far fewer rows:", "small")
    drawing.text(520, 367, "184,577 NUS-WIDE items have at most 1,023 patterns.", "small")
    return drawing.svg()


def map_reduce() -> bytes:
    """Draw one iteration of step 2 over blocks of rows."""
    drawing = Drawing(900, 400, "Blocks of rows each give a sum; the sums are added, and F takes a step")
    drawing.text(20, 28, "Rows of one modality, in blocks", "head")
    for number in range(3):
        top = 45 + 85 * number
        drawing.box(20, top, 130, 62, f"block {number + 1}", "X, B")
        drawing.arrow((150, top + 31), (205, top + 31))
        drawing.box(210, top, 270, 62, "φ = kernel(X)", "R = B ∘ max(0, 1 − B ∘ φF)")
        drawing.arrow((480, top + 31), (560, 161))
        drawing.text(505, top + 22, "φᵀR", "small", "middle") if number != 1 else None
    drawing.box(565, 120, 130, 82, "Σ φᵀR", "added in order")
    drawing.arrow((695, 161), (745, 161))
    drawing.box(750, 105, 135, 112, "step of F", "(ΦᵀΦ + ρI)⁻¹", "factored once")
    drawing.arrow((818, 217), (818, 345), (345, 345), (345, 285))
    drawing.text(580, 335, "the new F goes back to every block, a few times", "small", "middle")
    drawing.text(
        20, 385, "A block may be in a thread, in another process or on another machine: the sums are the same.", "small"
    )
    return drawing.svg()


def plotted(draw: Callable[..., None], *, panels: int, height: float = 3.6) -> bytes:
    """Return a figure of matplotlib as SVG, the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": draw.__name__, "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(*np.atleast_1d(figure.subplots(1, panels)))
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def margins(target, hinge) -> None:
    """Draw the target that a margin leaves, and the loss that follows from it."""
    x = np.linspace(-1.5, 2.5, 200)
    target.plot(x, np.maximum(1, x), color=BLUE, label="label is 1: max(1, PV)")
    target.plot(x, np.minimum(0, x), color=ORANGE, label="label is 0: min(0, PV)")
    target.axhline(1, color=BLUE, linestyle=":", linewidth=1)
    target.axhline(0, color=ORANGE, linestyle=":", linewidth=1)
    target.set(title="Step 1: the target moves along", xlabel="prediction PV", ylabel="target L + R∘E")
    target.legend(frameon=False, loc="upper left")
    hinge.plot(x, (1 - x) ** 2, color=GREY, linestyle="--", label="without margin: (1 − z)²")
    hinge.plot(x, np.maximum(0, 1 - x) ** 2, color=BLUE, label="with margin: max(0, 1 − z)²")
    hinge.set(title="Step 2: a squared hinge", xlabel="z = code × projection, per bit", ylabel="loss", ylim=(-0.2, 5))
    hinge.legend(frameon=False, loc="upper right")
    for ax in (target, hinge):
        ax.grid(alpha=0.3)


def relevance(posterior, meaning) -> None:
    """Draw the likelihood that RLH fits, and what distances of its codes mean on synthetic data."""
    from modalhash import AMSH, RLH
    from modalhash.data import generate

    agreement = np.linspace(-1, 1, 200)
    for sharpness, colour in ((2, "#56b4e9"), (4, BLUE), (8, "#003d66")):
        posterior.plot(
            agreement, 1 / (1 + np.exp(-(sharpness * agreement - 1))), color=colour, label=f"γ = {sharpness}, δ = −1"
        )
    posterior.set(
        title="What RLH fits", xlabel="agreement of two codes, uᵢᵀuⱼ / r", ylabel="probability of a shared label"
    )
    posterior.legend(frameon=False)
    data = generate(n_items=800, seed=0)
    (queries, labels), bits = data.queries, 32
    for name, method, colour, marker in (("RLH", RLH, BLUE, "o"), ("AMSH", AMSH, ORANGE, "s")):
        model = method(n_bits=bits, n_anchors=300, random_state=0).fit(data.X, data.Y)
        asked = model.transform({"image": queries["image"]})["image"]
        found = model.transform({"text": data.X["text"]})["text"]
        distance = np.bitwise_count(asked[:, None] ^ found[None]).sum(axis=2)
        relevant = np.asarray(labels["image"] @ data.Y["text"].T) > 0
        edges = np.arange(0, bits + 1, 2)
        shares = [relevant[(distance >= low) & (distance < low + 2)] for low in edges]
        known = [(low + 0.5, share.mean()) for low, share in zip(edges, shares, strict=True) if share.size >= 50]
        meaning.plot(*zip(*known, strict=True), marker=marker, markersize=4, color=colour, label=name)
    meaning.axhline(relevant.mean(), color="0.5", linestyle="--", linewidth=1, label="any two items")
    meaning.set(
        title="What a distance then means",
        xlabel=f"differing bits of {bits}, image → text",
        ylabel="share with a common label",
    )
    meaning.legend(frameon=False)
    for ax in (posterior, meaning):
        ax.grid(alpha=0.3)
        ax.set_ylim(-0.03, 1.03)


def main() -> None:
    """Write the figures beside this file."""
    drawings = {
        "amsh-two-steps": two_steps(),
        "amsh-patterns": patterns(),
        "amsh-margins": plotted(margins, panels=2),
        "amsh-map-reduce": map_reduce(),
        "rlh-relevance": plotted(relevance, panels=2),
    }
    for name, content in drawings.items():
        (HERE / f"{name}.svg").write_bytes(content)


if __name__ == "__main__":
    main()
