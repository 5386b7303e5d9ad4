"""Miniature trees in the layout of the official distributions, with their known traps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.io import savemat

MIR_LABELS = ["animals", "plant_life", "sky"]
NUS_CONCEPTS = ["actor", "lake", "sky", "water"]


def write(path: Path, content: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))


def picture(path: Path, k: int, mode: str = "RGB", size: tuple[int, int] = (48, 40)) -> None:
    """Noise, another for each k."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(k).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def mirflickr(root: Path, *, n: int = 12, edges: bool = False, pictures: bool = True) -> Path:
    """Image k has the tags ``common<k % 3>`` and ``rare<k>``, and ``odd`` if k is; every fifth has none.

    Images with k % 4 == 0 have no label.
    """
    for k in range(1, n + 1):
        tags = "" if k % 5 == 0 else f"common{k % 3}\nrare{k}\nstraße\n" + ("odd\n" if k % 2 else "")
        write(root / "mirflickr/meta/tags" / f"tags{k}.txt", tags)
        write(root / "mirflickr/meta/tags_raw" / f"tags{k}.txt", tags.upper())
        if edges:
            lines = "\n".join(str(k + i / 1000) for i in range(150))
            write(root / "features_edgehistogram" / "0" / f"{k - 1}.txt", lines + "\n")
        if pictures:
            picture(root / "mirflickr" / f"im{k}.jpg", k, "L" if k % 2 else "RGB")
    write(root / "mirflickr/doc/common_tags.txt", "common0 40\ncommon1 30\ncommon2   20\nodd 20\n")
    folder = root / "mirflickr25k_annotations_v080"
    for column, name in enumerate(MIR_LABELS):
        numbers = [k for k in range(1, n + 1) if k % 4 and k % len(MIR_LABELS) == column]
        write(folder / f"{name}.txt", "\n".join(map(str, numbers)) + "\n")
    write(folder / "sky_r1.txt", "2\n5\n")
    write(folder / "README.txt", "annotations\n")
    return root


def nuswide(root: Path, *, n: int = 30, halves: bool = False, bad_label: bool = False) -> Path:
    """Row k has ``sky``; every second ``water``, every third ``lake``; no row ``actor``; rows 0 mod 10 none at all."""
    rng = np.random.default_rng(0)
    names = [f"actor\\{k:04}_{1000 + k // 2}.jpg" for k in range(n)]  # Flickr ids repeat
    write(root / "ImageList/Imagelist.txt", "\n".join(names) + "\n")
    order = rng.permutation(n)
    train, test = np.sort(order[: n // 2]), np.sort(order[n // 2 :])
    write(root / "ImageList/TrainImagelist.txt", "\n".join(names[k] for k in train))
    write(root / "ImageList/TestImagelist.txt", "\n".join(names[k] for k in test))
    write(root / "ConceptsList/Concepts81.txt", "\n".join(NUS_CONCEPTS) + "\n")
    some = np.arange(n) % 10 > 0
    columns = {"actor": some & False, "sky": some, "water": some & (np.arange(n) % 2 == 0)}
    columns["lake"] = some & (np.arange(n) % 3 == 0)
    for name, column in columns.items():
        text = [str(int(value)) for value in column]
        if bad_label and name == "lake":
            text[int(train[0])] = "-1130179"
        if halves:
            for part, rows in (("Train", train), ("Test", test)):
                path = root / "Groundtruth/TrainTestLabels" / f"Labels_{name}_{part}.txt"
                write(path, "\n".join(text[k] for k in rows) + "\n")
        else:
            write(root / "Groundtruth/AllLabels" / f"Labels_{name}.txt", "\n".join(text) + "\n")
    tags = [["1" if j == k or (j == 999 and k % 2) else "0" for j in range(1000)] for k in range(n)]
    tags[3] = ["0"] * 1000
    bags = [" ".join(str(k * j % 7) for j in range(500)) + " " for k in range(n)]
    low = root / "NUS_WID_Low_Level_Features/Low_Level_Features"
    if halves:
        for part, rows in (("Train", train), ("Test", test)):
            lines = "\n".join("\t".join(tags[k]) + "\t" for k in rows)
            write(root / f"NUS_WID_Tags/{part}_Tags1k.dat", lines + "\n")
            write(low / f"BoW_{part}_int.dat", "\n".join(bags[k] for k in rows) + "\n")
    else:
        write(root / "NUS_WID_Tags/AllTags1k.txt", "\n".join(" ".join(row) for row in tags) + "\n")
        write(low / "BoW_int.dat", "\n".join(bags) + "\n")
    return root


def iapr(root: Path, *, n: int = 12) -> Path:
    """Image k has the region labels 1 and 1 + k % 3; its caption says so, in cp1252, sometimes not as XML."""
    names = {1: "sky", 2: "man", 3: "", 5: "never"}
    write(root / "benchmark/wlist.txt", "".join(f"{number}\t{name}\n" for number, name in names.items()))
    regions: dict[str, list[str]] = {"00": [], "01": []}
    for k in (*range(1, n), 1000):
        folder = f"{k // 1000:02}"
        broken = " & <b" if k == 2 else ""
        caption = f"a café number{k % 3} in the sun – really;{broken}"
        body = (
            f"<DOC>\n<DOCNO>annotations/{folder}/{k}.eng</DOCNO>\n<TITLE>Plaza</TITLE>\n"
            f"<DESCRIPTION>{caption}</DESCRIPTION>\n<NOTES></NOTES>\n<LOCATION>Peru</LOCATION>\n"
            f"<IMAGE>images/{folder}/{k}.jpg</IMAGE>\n</DOC>\n"
        )
        if k != n - 1:  # one image has labels and no caption
            write(root / "iaprtc12/annotations_complete_eng" / folder / f"{k}.eng", body, "cp1252")
        regions[folder] += [f"{k}\t1\t1", f"{k} 2 {1 + k % 3}"]
        picture(root / "iaprtc12/images" / folder / f"{k}.jpg", k)
    for folder, lines in regions.items():
        write(root / "benchmark/saiapr_tc-12" / folder / "labels.txt", "\n".join([*lines, "7"]) + "\n")
    return root


def wiki(root: Path, *, training: int = 20, query: int = 10) -> Path:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n, name in (("tr", training, "trainset"), ("te", query, "testset")):
        arrays[f"I_{part}"], arrays[f"T_{part}"] = rng.random((n, 8)), rng.random((n, 4))
        lines = "".join(f"{name}{k}-1.2\t{name}image{k}\t{k % 10 + 1}\n" for k in range(n))
        write(root / f"{name}_txt_img_cat.list", lines)
    savemat(root / "raw_features.mat", arrays)
    return root
