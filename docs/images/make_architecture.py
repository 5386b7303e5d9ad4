"""Draw docs/images/architecture.svg, the rooms on their floors.

python docs/images/make_architecture.py
"""

from __future__ import annotations

from pathlib import Path

FLOORS = [  # from the top down: floor, [(room, what it is)]
    ("what people use", [
        ("cli", "commands"), ("serve", "HTTP API, page, client"), ("reproduction", "the AMSH paper"),
    ]),
    ("what combines", [("engine", "train, add, search"), ("experiments", "grids to results")]),
    ("usable alone", [
        ("methods", "one file each"), ("evaluation", "measures"), ("index", "codes in memory"),
        ("store", "items on disk"), ("encoders", "raw to features"), ("data", "data sets"),
    ]),
    ("the ground", [
        ("core", "codes, kernels, linear algebra, features, blocks, validation"), ("distributed", "fits on Dask"),
    ]),
]  # fmt: skip
WIDTH, HEIGHT, GAP, LEFT = 960, 66, 14, 150
STYLE = """
  .room { fill: #f4faf9; stroke: #00796b; stroke-width: 1.5 }
  .name { font: 600 15px sans-serif; fill: #004d40 } .what { font: 12px sans-serif; fill: #37474f }
  .floor { font: 13px sans-serif; fill: #546e7a } .arrow { stroke: #90a4ae; stroke-width: 2; fill: none }
  @media (prefers-color-scheme: dark) {
    .room { fill: #14312d; stroke: #4db6ac } .name { fill: #b2dfdb } .what { fill: #cfd8dc } .floor { fill: #90a4ae }
  }
"""


def main() -> None:
    """Write the drawing next to this file."""
    total = len(FLOORS) * (HEIGHT + 34) - 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" role="img" '
        f'aria-label="Rooms on four floors; a room imports only rooms on its own or lower floors">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#90a4ae"/></marker></defs>',
    ]
    for level, (floor, rooms) in enumerate(FLOORS):
        top = level * (HEIGHT + 34) + 4
        parts.append(f'<text class="floor" x="0" y="{top + HEIGHT / 2 + 4}">{floor}</text>')
        width = (WIDTH - LEFT - GAP * (len(rooms) - 1) - 4) / len(rooms)
        for column, (name, what) in enumerate(rooms):
            left = LEFT + column * (width + GAP)
            middle = left + width / 2
            parts += [
                f'<rect class="room" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" rx="7"/>',
                f'<text class="name" x="{middle:.1f}" y="{top + 28}" text-anchor="middle">{name}</text>',
                f'<text class="what" x="{middle:.1f}" y="{top + 48}" text-anchor="middle">{what}</text>',
            ]
            if level + 1 < len(FLOORS):
                start = top + HEIGHT + 4
                parts.append(
                    f'<path class="arrow" marker-end="url(#tip)" d="M{middle:.1f} {start}L{middle:.1f} {start + 24}"/>'
                )
    Path(__file__).with_name("architecture.svg").write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
