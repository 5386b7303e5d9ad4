"""read(): formats, layouts, orientation, mapping."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
from data_files import one_hot, parts, write_v73
from scipy import sparse
from scipy.io import savemat

from modalhash.data import ReadError, guess_mapping, read, write_npz

N = 20
IMAGE = np.arange(N * 6.0).reshape(N, 6)
TEXT = (np.arange(N * 5).reshape(N, 5) % 3 == 0).astype(np.uint8)
LABELS = one_hot(np.arange(N) % 4, 4)


def check(data, *, n=N, image=IMAGE, text=TEXT, labels=LABELS):
    np.testing.assert_array_equal(data.features["image"], image)
    found = data.features["text"]
    np.testing.assert_array_equal(found.toarray() if sparse.issparse(found) else found, text)
    np.testing.assert_array_equal(data.labels["image"], labels.astype(bool))
    np.testing.assert_array_equal(data.labels["text"], labels.astype(bool))
    assert data.paired
    assert data.sizes == {"image": n, "text": n}


@pytest.mark.parametrize("kind", ["v5", "v73", "npz", "h5"])
@pytest.mark.parametrize("database", [0, 30])
def test_parts_with_and_without_database(tmp_path, kind, database):
    arrays = parts(database=database)
    path = tmp_path / f"data.{kind if kind in ('npz', 'h5') else 'mat'}"
    if kind == "v5":
        savemat(path, arrays)
    elif kind == "v73":
        write_v73(path, **arrays)
    elif kind == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, value in arrays.items():
                file[name] = value
    data = read(path)
    training, query, searched = data.parts()
    np.testing.assert_array_equal(training.features["image"], arrays["I_tr"])
    np.testing.assert_array_equal(query.features["text"], arrays["T_te"])
    np.testing.assert_array_equal(query.labels["image"], arrays["L_te"])
    np.testing.assert_array_equal(searched.features["image"], arrays["I_db" if database else "I_tr"])
    assert len(data.provenance["sha256"]) == 64


@pytest.mark.parametrize(
    "names",
    [("XAll", "YAll", "LAll"), ("IAll", "TAll", "LAll"), ("imgs", "tags", "labels"), ("image", "text", "labels")],
)
@pytest.mark.parametrize("turned", [False, True])
def test_whole_files_in_both_orientations(tmp_path, names, turned):
    arrays = dict(zip(names, (IMAGE, TEXT, LABELS), strict=True))
    savemat(tmp_path / "v5.mat", {name: value.T if turned else value for name, value in arrays.items()})
    write_v73(tmp_path / "v73.mat", **{name: value.T if turned else value for name, value in arrays.items()})
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        for name, value in arrays.items():
            file[name] = value.T if turned else value
    for file in ("v5.mat", "v73.mat", "plain.h5"):
        check(read(tmp_path / file))


def test_test_and_database_layout_with_vgg(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {}
    for part, n in (("Test", 8), ("Database", 30)):
        arrays |= {f"X{part}": rng.random((n, 6)), f"V{part}": rng.random((n, 9)), f"Y{part}": rng.random((n, 5))}
    arrays |= {"testL": one_hot(np.arange(8) % 3, 3), "databaseL": one_hot(np.arange(30) % 3, 3)}
    savemat(tmp_path / "flickr-25k.mat", arrays)
    data = read(tmp_path / "flickr-25k.mat")
    assert data.modalities == ("image", "text", "image_vgg")
    training, query, database = data.parts()
    np.testing.assert_array_equal(query.features["image_vgg"], arrays["VTest"])
    np.testing.assert_array_equal(database.features["text"], arrays["YDatabase"])
    assert database is training


def test_coco_layout(tmp_path):
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "coco.h5py", "w") as file:
        for part, n in (("train", 30), ("test", 8)):
            file[f"{part}_imgs_deep"] = rng.random((n, 6))
            file[f"{part}_text"] = rng.random((n, 5))
            file[f"{part}_imgs_labels"] = one_hot(np.arange(n) % 3, 3)
    training, query, _ = read(tmp_path / "coco.h5py").parts()
    assert training.sizes == {"image": 30, "text": 30}
    assert query.sizes == {"image": 8, "text": 8}


def test_iapr_adds_vgg_and_wiki_adds_indices_and_class_numbers(tmp_path):
    arrays = parts()
    savemat(tmp_path / "IAPRTC-12.mat", {**arrays, "V_tr": np.ones((40, 3)), "V_te": np.ones((9, 3))})
    assert read(tmp_path / "IAPRTC-12.mat").features["image_vgg"].shape == (49, 3)
    arrays["L_tr"], arrays["L_te"] = (arrays[name].argmax(axis=1)[:, None] + 1 for name in ("L_tr", "L_te"))
    savemat(tmp_path / "WIKI.mat", {**arrays, "sampleInds": np.arange(40)[None]})
    data = read(tmp_path / "WIKI.mat")
    assert data.class_names == ("1", "2", "3")
    np.testing.assert_array_equal(data.labels["image"], parts()["L_tr"].tolist() + parts()["L_te"].tolist())
    assert data.provenance["notes"] == ["not used: sampleInds"]


@pytest.mark.parametrize("start", [0, 1])
def test_class_numbers_become_columns(tmp_path, start):
    savemat(tmp_path / "a.mat", {"XAll": IMAGE, "YAll": TEXT, "LAll": LABELS.argmax(axis=1)[:, None] + start})
    check(read(tmp_path / "a.mat"))


def test_class_numbers_must_be_whole(tmp_path):
    savemat(tmp_path / "a.mat", {"XAll": IMAGE, "YAll": TEXT, "LAll": np.full((N, 1), 0.5)})
    with pytest.raises(ValueError, match="class numbers"):
        read(tmp_path / "a.mat")


@pytest.mark.parametrize("layout", ["matlab", "rows first", "channels first"])
def test_pixels_in_every_order(tmp_path, layout):
    """(items, height, width, colours) comes out of each way in which such files are stored."""
    pixels = np.random.default_rng(0).integers(0, 255, size=(N, 8, 10, 3), dtype=np.uint8)
    stored = {
        "matlab": pixels.transpose(0, 3, 2, 1),  # 224×224×3×N in MATLAB
        "rows first": pixels.transpose(1, 2, 3, 0),
        "channels first": pixels.transpose(0, 3, 1, 2),
    }[layout]
    write_v73(tmp_path / "a.mat", YAll=TEXT, LAll=LABELS)
    with h5py.File(tmp_path / "a.mat", "a") as file:
        file["images"] = stored
        if layout != "channels first":
            file["images"].attrs["MATLAB_class"] = np.bytes_("uint8")
    check(read(tmp_path / "a.mat"), image=pixels)


def test_folder_of_files_of_both_versions(tmp_path):
    pixels = np.zeros((N, 3, 8, 8), dtype=np.uint8)
    with h5py.File(tmp_path / "mirflickr25k-iall.mat", "w") as file:
        file["IAll"] = pixels
    savemat(tmp_path / "mirflickr25k-yall.mat", {"YAll": TEXT})
    savemat(tmp_path / "mirflickr25k-lall.mat", {"LAll": LABELS})
    names = np.array([[f"im{k}.jpg"] for k in range(N)], dtype=object)
    savemat(tmp_path / "mirflickr25k-fall.mat", {"FAll": names})
    data = read(tmp_path)
    check(data, image=np.zeros((N, 8, 8, 3)))
    assert data.raw["image"][3] == "im3.jpg"
    savemat(tmp_path / "mirflickr25k-iall-vgg.mat", {"XAll": IMAGE})
    check(read([tmp_path / f"mirflickr25k-{part}.mat" for part in ("iall-vgg", "yall", "lall")]))
    both = read(tmp_path)
    assert both.modalities == ("image", "image_pixels", "text")


def test_lists_of_images_tags_and_labels(tmp_path):
    names = np.array([[f"actor  {'':3}", f"{k:04}_{k}.jpg"] for k in range(N)], dtype=object)
    savemat(tmp_path / "imgList21.mat", {"imgs": names})
    savemat(tmp_path / "tagList21.mat", {"tags": TEXT})
    savemat(tmp_path / "labelList21.mat", {"labels": LABELS})
    data = read(tmp_path)
    assert data.raw["image"][4] == "actor/0004_4.jpg"
    np.testing.assert_array_equal(data.features["text"], TEXT)
    assert data.sizes == {"text": N, "image": N}


@pytest.mark.parametrize("as_text", [False, True])
def test_index_caption_and_category(tmp_path, as_text):
    texts = [f"caption number {k}" for k in range(N)]
    savemat(tmp_path / "index.mat", {"index": np.array([f"/img/{k}.jpg" for k in range(N)])})
    savemat(tmp_path / "label.mat", {"category": LABELS})
    if as_text:
        (tmp_path / "caption.txt").write_text("\n".join(texts), encoding="utf-8")
    else:
        savemat(tmp_path / "caption.mat", {"caption": np.array(texts)})
    data = read(tmp_path)
    assert data.raw["image"][0] == "/img/0.jpg"
    assert data.raw["text"].tolist() == texts
    assert data.labels["text"].shape == (N, 4)


@pytest.mark.parametrize("kind", ["v5", "v73"])
def test_cell_array_is_several_views(tmp_path, kind):
    views = [IMAGE, TEXT.astype(float), np.ones((N, 3))]
    classes = LABELS.argmax(axis=1)[:, None] + 1
    if kind == "v5":
        cells = np.empty((1, 3), dtype=object)
        cells[0, :] = views
        savemat(tmp_path / "a.mat", {"X": cells, "Y": classes})
    else:
        write_v73(tmp_path / "a.mat", X=views, Y=classes)
    data = read(tmp_path / "a.mat")
    assert data.modalities == ("view1", "view2", "view3")
    np.testing.assert_array_equal(data.features["view1"], IMAGE)
    np.testing.assert_array_equal(data.labels["view3"], LABELS)
    named = read(tmp_path / "a.mat", pix="X{1}", mor="X{3}", labels="Y")
    assert named.modalities == ("pix", "mor")


@pytest.mark.parametrize("kind", ["v5", "v73", "triples", "scipy"])
def test_sparse_matrices(tmp_path, kind):
    matrix = sparse.csr_array(TEXT.astype(float))
    path = tmp_path / "a.mat"
    if kind == "v5":
        savemat(path, {"XAll": IMAGE, "YAll": sparse.csc_matrix(matrix), "LAll": sparse.csc_matrix(LABELS)})
    elif kind == "v73":
        write_v73(path, XAll=IMAGE, YAll=matrix, LAll=sparse.csr_array(LABELS.astype(float)))
    elif kind == "triples":
        path = tmp_path / "a.npz"
        arrays = {"T_indptr": matrix.indptr, "T_indices": matrix.indices.astype(np.int16), "T_shape": matrix.shape}
        np.savez(path, I=IMAGE, L=LABELS, **arrays)
    else:
        path = [tmp_path / f"{name}.npz" for name in ("text", "labels")] + [tmp_path / "image.npy"]
        sparse.save_npz(path[0], matrix)
        sparse.save_npz(path[1], sparse.csc_array(LABELS))
        np.save(path[2], IMAGE)
    data = read(path)
    assert isinstance(data.features["text"], sparse.csr_array)
    check(data)


def test_mapping(tmp_path):
    np.savez(tmp_path / "a.npz", pictures=IMAGE, words=TEXT, truth=LABELS, keys=[f"k{k}" for k in range(N)])
    with pytest.raises(ValueError, match=r"not recognised.*pictures 20×6 numbers; words 20×5.*image=\"XAll\""):
        read(tmp_path / "a.npz")
    data = read(tmp_path / "a.npz", image="pictures", text="words", labels="truth", ids="keys")
    check(data)
    assert data.ids["text"][1] == "k1"
    with pytest.raises(ValueError, match="text='wrods': no such variable; the file has: pictures 20×6"):
        read(tmp_path / "a.npz", image="pictures", text="wrods")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("pictures", "words", "truth"), {"image": "pictures", "text": "words", "labels": "truth"}),
        (("a", "b", "c"), {"image": "a", "text": "b", "labels": "c"}),  # the labels have the fewest columns
        (("words", "pics", "targets"), {"text": "words", "image": "pics", "labels": "targets"}),
    ],
)
def test_an_unknown_layout_comes_with_a_guess(tmp_path, names, expected):
    np.savez(tmp_path / "a.npz", **dict(zip(names, (IMAGE, TEXT, LABELS), strict=True)), n=N, odd=np.ones((3, 2)))
    with pytest.raises(ReadError) as caught:
        read(tmp_path / "a.npz")
    assert caught.value.mapping == guess_mapping(tmp_path / "a.npz") == expected
    assert pickle.loads(pickle.dumps(caught.value)).mapping == expected
    np.testing.assert_array_equal(read(tmp_path / "a.npz", **expected).labels["image"], LABELS.astype(bool))


def test_a_guess_takes_the_parts_of_a_stem_together_and_may_be_empty(tmp_path):
    np.savez(tmp_path / "a.npz", u_tr=IMAGE, u_te=IMAGE[:3], v_tr=TEXT, v_te=TEXT[:3], w_tr=LABELS, w_te=LABELS[:3])
    assert guess_mapping(tmp_path / "a.npz") == {"image": "u", "text": "v", "labels": "w"}
    np.savez(tmp_path / "b.npz", one=IMAGE, n=3, other=np.ones((7, 2)))
    assert guess_mapping(tmp_path / "b.npz") == {}
    (tmp_path / "c.csv").write_text("id,text\n1,a\n")
    assert guess_mapping(tmp_path / "c.csv") == {}


def test_mapping_by_stem_takes_all_parts(tmp_path):
    savemat(tmp_path / "a.mat", {**parts(), "V_tr": np.ones((40, 3)), "V_te": np.zeros((9, 3))})
    data = read(tmp_path / "a.mat", image="V", text="T", labels="L")
    assert data.features["image"].shape == (49, 3)
    assert data.parts().query.features["image"].sum() == 0


def test_mapping_with_labels_by_modality(tmp_path):
    np.savez(tmp_path / "a.npz", a=IMAGE, b=TEXT[:12], la=LABELS, lb=LABELS[:12])
    data = read(tmp_path / "a.npz", image="a", text="b", labels={"image": "la", "text": "lb"})
    assert data.sizes == {"image": N, "text": 12}
    assert not data.paired


def test_plain_x_and_y_are_not_guessed(tmp_path):
    np.savez(tmp_path / "a.npz", X=IMAGE, Y=TEXT)
    with pytest.raises(ValueError, match="not recognised"):
        read(tmp_path / "a.npz")


def test_written_files_come_back(tmp_path):
    first = read_parts(tmp_path)
    back = read(write_npz(first, tmp_path / "out.npz"))
    assert back.name == first.name
    assert back.class_names == first.class_names
    assert back.split.database_is_training
    for name in first.modalities:
        np.testing.assert_array_equal(back.features[name], first.features[name])
        np.testing.assert_array_equal(back.labels[name], first.labels[name])
        np.testing.assert_array_equal(back.ids[name], first.ids[name])
        np.testing.assert_array_equal(back.split.query[name], first.split.query[name])


def test_unpaired_data_with_raw_items_come_back(tmp_path):
    whole = read_parts(tmp_path)
    first = whole.select({"image": slice(0, 5), "text": slice(3, 12)})
    back = read(write_npz(first, tmp_path / "out.npz"))
    assert back.sizes == {"image": 5, "text": 9}
    np.testing.assert_array_equal(back.ids["text"], np.arange(3, 12))
    np.testing.assert_array_equal(back.labels["text"], first.labels["text"])


def read_parts(folder):
    savemat(folder / "first.mat", parts())
    return read(folder / "first.mat")
