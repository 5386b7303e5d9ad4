"""Write what the README's commands take into this folder: photos/ with pictures of two kinds, labels.csv, texts.csv."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

BACKGROUND = {"snow": "white", "sea": "navy"}


def picture(kind: str) -> Image.Image:
    """Return a picture with twenty spots on the colour of its kind."""
    made = Image.new("RGB", (96, 96), BACKGROUND[kind])
    draw = ImageDraw.Draw(made)
    for _ in range(20):
        x, y = random.randrange(90), random.randrange(90)
        draw.ellipse((x, y, x + random.randrange(9, 30), y + 9), random.choice(["gray", "blue", "teal"]))
    return made


def main() -> None:
    random.seed(0)
    Path("photos").mkdir()
    labels, texts = ["id,labels"], ["id,text"]
    for number in range(120):
        kind = ("snow", "sea")[number % 2]
        picture(kind).save(f"photos/{kind}-{number}.jpg")
        labels.append(f"photos/{kind}-{number}.jpg,{kind}")
        texts.append(f"t{number},a day in the {kind} number {number}")
    Path("labels.csv").write_text("\n".join(labels), encoding="utf-8")
    Path("texts.csv").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
