"""What inputs are made from at first: a small engine and its backup, files of every format."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random

import numpy as np

N_ITEMS = 9
COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (30, 40, 200)}


def prepare(folder: Path) -> None:
    """Make what targets share, once."""
    from modalhash import Engine
    from modalhash.engine import backup_engine

    if (folder / "ready").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw, items = Random(0), []
    for number in range(40):
        name = draw.choice(list(COLOURS))
        path = folder / f"{number}.png"
        path.write_bytes(picture("PNG", COLOURS[name], number))
        items.append({"id": f"picture/{number}", "path": str(path), "labels": [name], "year": 1990 + number})
        items.append(
            {"id": f"text {number}", "text": f"something {name} number {number}", "labels": [name], "title": "a"}
        )
    Engine.train(items, folder / "engine", n_bits=16, overwrite=True).close()
    (folder / "engine.tar").unlink(missing_ok=True)
    backup_engine(folder / "engine", folder / "engine.tar")
    (folder / "ready").touch()


def picture(kind: str, colour: tuple[int, int, int] = (200, 30, 30), number: int = 0, **options: object) -> bytes:
    """Return a small picture of a format that Pillow writes."""
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 60, (12, 14, 3)) + np.array(colour) // 2
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, kind, **options)
    return out.getvalue()


def pictures() -> list[bytes]:
    """Return pictures of every format that the service takes, and of some that it does not."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    out = [picture("PNG"), picture("GIF"), picture("WEBP"), picture("BMP"), picture("PPM"), picture("ICO")]
    out += [picture("JPEG", exif=exif), picture("JPEG", progressive=True), picture("TIFF", exif=exif)]
    out += [picture("TIFF", compression="tiff_lzw"), picture("TGA"), picture("AVIF")]
    return out


def manifest_lines() -> str:
    """Return a manifest as JSONL."""
    lines = [
        {"id": k, "text": f"täxt {k}", "labels": ["a", "b"][k % 2 :], "split": ["train", "test", "database"][k % 3]}
        for k in range(5)
    ]
    more = [
        {"id": "p", "path": "0.png", "labels": "a;b"},
        {"modality": "text", "text": "x", "year": 1999, "x": {"y": [1]}},
    ]
    return "\n".join(json.dumps(line) for line in [*lines, *more])


def arrays() -> dict[str, object]:
    """Return features, tags and labels of a few items."""
    from scipy import sparse

    labels = np.eye(3, dtype=np.uint8)[np.arange(N_ITEMS) % 3]
    return {
        "XAll": np.arange(N_ITEMS * 4.0).reshape(N_ITEMS, 4),
        "YAll": sparse.csc_array(np.eye(N_ITEMS, 5)),
        "LAll": labels,
    }


def matlab_files(folder: Path) -> list[bytes]:
    """Return MATLAB files of versions 4 and 5: dense, sparse, text, cells, compressed and not."""
    from scipy.io import savemat

    texts = np.array([f"täxt {k}" for k in range(N_ITEMS)], dtype=object)[:, None]
    cells = np.array([np.arange(3.0), "x", np.eye(2)], dtype=object)
    path, found = folder / "seed.mat", []
    for content, options in (
        (arrays(), {}), ({**arrays(), "captions": texts}, {"do_compression": True}),
        ({"c": cells, "t": np.array(["ab", "cd"]), "s": {"a": 1}, "z": np.array([1 + 2j])}, {}),
        (arrays(), {"format": "4"}), ({"I_tr": np.eye(4), "I_te": np.eye(4), "b": np.array([True])}, {}),
    ):  # fmt: skip
        savemat(path, content, **options)
        found.append(path.read_bytes())
    return found


def hdf5_files(folder: Path) -> list[bytes]:
    """Return HDF5 files: as MATLAB 7.3 writes them, and as Python programs do."""
    import h5py
    from scipy import sparse

    values, found = arrays(), []
    path = folder / "seed.h5"
    matrix = sparse.csc_array(values["YAll"])
    for libver in ("earliest", "latest"):
        with h5py.File(path, "w", userblock_size=512, libver=libver) as file:
            file["XAll"] = np.asarray(values["XAll"]).T
            file["XAll"].attrs["MATLAB_class"] = np.bytes_("double")
            group = file.create_group("YAll")
            group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"] = np.bytes_("double"), np.uint64(N_ITEMS)
            group["data"], group["ir"], group["jc"] = (
                matrix.data,
                matrix.indices.astype("u8"),
                matrix.indptr.astype("u8"),
            )
            cell = file.create_dataset("captions", (2, 1), dtype=h5py.ref_dtype)
            cell.attrs["MATLAB_class"] = np.bytes_("cell")
            for number in range(2):
                target = file.require_group("#refs#").create_dataset(
                    f"c{number}", data=np.array([[97], [98]], dtype="u2")
                )
                target.attrs["MATLAB_class"] = np.bytes_("char")
                cell[number, 0] = target.ref
        found.append(path.read_bytes())
        with h5py.File(path, "w", libver=libver) as file:
            file["XAll"], file["LAll"], file["group/captions"] = values["XAll"], values["LAll"], ["a", "täxt"]
            file.create_dataset("z", data=np.zeros((20, 4)), chunks=(5, 4), compression="gzip", shuffle=True)
        found.append(path.read_bytes())
    return found


def numpy_files() -> list[bytes]:
    """Return .npy, .npz and scipy's .npz."""
    from scipy import sparse

    values, found = arrays(), []
    csr = sparse.csr_array(values["YAll"])
    triple = {"T_indptr": csr.indptr, "T_indices": csr.indices, "T_data": csr.data, "T_shape": np.array(csr.shape)}
    texts = {"x__raw": np.frombuffer("aübc".encode(), np.uint8), "x__raw_lengths": np.array([1, 4])}
    for save in (
        lambda out: np.savez(out, I=values["XAll"], L=values["LAll"], ids=np.array(["a", "ü"]), **triple),
        lambda out: np.savez_compressed(out, I=values["XAll"], b=np.array([b"x", b"yz"]), **texts),
        lambda out: np.save(out, np.asfortranarray(values["XAll"])),
        lambda out: sparse.save_npz(out, csr, compressed=False),
        lambda out: sparse.save_npz(out, csr.tocoo(), compressed=False),
        lambda out: np.savez(out, XAll=values["XAll"], LAll=values["LAll"], YAll=values["LAll"]),
    ):
        out = io.BytesIO()
        save(out)
        found.append(out.getvalue())
    return found
