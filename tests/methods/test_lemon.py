"""LEMON: every step lowers the objective, chunks are sums, and what was learned stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from modalhash import load
from modalhash.core.linalg import sign, unit_rows
from modalhash.methods import lemon
from modalhash.methods.lemon import LEMON
from reference import lemon as slow

WEIGHTS = [(1.0, 1.0), (1e4, 1e4), (1e-3, 10.0)]


def labels_of(rng, n, c):
    L = rng.random((n, c)) < 0.3
    L[np.arange(n), rng.integers(c, size=n)] = True
    return L


@pytest.fixture
def stream(rng):
    """Images and texts of three chunks with labels of 7 classes."""
    names, centres = {"image": 12, "text": 9}, {}
    chunks = []
    for n in (90, 70, 110):
        L = labels_of(rng, n, 7)
        for name, d in names.items():
            centres.setdefault(name, rng.normal(size=(7, d)))
        X = {name: L @ centres[name] + rng.normal(size=(n, d)) + 3 for name, d in names.items()}
        chunks.append((X, dict.fromkeys(names, L)))
    return chunks


def unpacked(model, name):
    return 2.0 * np.unpackbits(model.codes_[name], axis=1, count=model.n_bits) - 1


@pytest.mark.parametrize(("alpha", "beta"), WEIGHTS)
@pytest.mark.parametrize("r", [5, 11])  # below and above the number of classes
def test_the_steps_are_those_of_the_paper_and_none_raises_the_objective(rng, alpha, beta, r):
    """Sums of earlier chunks do what their codes would do, kept in full, with S as a matrix."""
    c, gamma = 7, 0.1
    old = tuple(np.zeros((0, width)) for width in (c, r, r))
    state = {"H1": np.zeros((r, r)), "H2": np.zeros((r, c)), "H5": np.zeros((r, r))}
    state |= {"H3": np.zeros((c, r)), "H6": np.zeros((c, r))}
    for _ in range(3):
        L = labels_of(rng, 40, c).astype(float)
        G = unit_rows(L)
        B, R = sign(rng.normal(size=(40, r))), np.linalg.qr(rng.normal(size=(r, r)))[0]
        V = lemon.balanced_procrustes(rng.normal(size=(40, r)), rng)  # feasible, as the objective's constants need
        P = slow.step_1((L, B, V), old, gamma)
        values = [slow.objective((L, B, V), old, P, R, alpha, beta, gamma)]
        for _ in range(4):
            P = lemon.update_P(state, V, L, gamma)
            np.testing.assert_allclose(P, slow.step_1((L, B, V), old, gamma), atol=1e-9)
            values.append(slow.objective((L, B, V), old, P, R, alpha, beta, gamma))
            expected = slow.step_2((L, B, V), old, P, R, alpha, beta)
            V = lemon.update_V(state, B, R, G, beta * (L @ P.T), alpha, rng)
            np.testing.assert_allclose(V, expected, atol=1e-5)
            np.testing.assert_allclose(V.T @ V, 40 * np.eye(r), atol=1e-6)
            np.testing.assert_allclose(V.sum(axis=0), 0, atol=1e-7)
            values.append(slow.objective((L, B, V), old, P, R, alpha, beta, gamma))
            R = lemon.orthogonal_procrustes((state["H5"] + B.T @ V).T, near=R)
            np.testing.assert_allclose(R, slow.step_3((L, B, V), old), atol=1e-5)
            values.append(slow.objective((L, B, V), old, P, R, alpha, beta, gamma))
            B = lemon.update_B(state, V, R, G, alpha)
            np.testing.assert_array_equal(B, slow.step_4((L, B, V), old, R, alpha))
            values.append(slow.objective((L, B, V), old, P, R, alpha, beta, gamma))
        assert np.all(np.diff(values) <= 1e-9 * values[0])
        old = tuple(np.vstack(both) for both in zip(old, (L, B, V), strict=True))
        products = {"H1": V.T @ V, "H2": V.T @ L, "H3": G.T @ B, "H5": B.T @ V, "H6": G.T @ V}
        state = {name: value + products[name] for name, value in state.items()}


def test_partial_fit_is_fit_chunk_by_chunk(stream):
    """The chunks of ``fit`` are shuffled; given in that order, ``partial_fit`` learns the same codes and functions."""
    X = {name: np.concatenate([part[name] for part, _ in stream]) for name in stream[0][0]}
    L = np.concatenate([labels["image"] for _, labels in stream])
    whole = LEMON(16, chunk_size=100, random_state=0).fit(X, dict.fromkeys(X, L), pairs="aligned")
    parts, codes = LEMON(16, random_state=0), np.empty_like(whole.codes_["image"])
    order = np.random.default_rng([0, 0]).permutation(270)
    for rows in (order[:100], order[100:]):  # the last chunk takes the rest
        parts.partial_fit({name: X[name][rows] for name in X}, dict.fromkeys(X, L[rows]), pairs="aligned")
        codes[rows] = parts.codes_["text"]
    np.testing.assert_array_equal(whole.codes_["image"], codes)
    np.testing.assert_array_equal(whole.codes_["text"], codes)
    for name in X:
        np.testing.assert_allclose(whole.decision_function(X)[name], parts.decision_function(X)[name], atol=1e-9)


@pytest.mark.parametrize("centre", [True, False])
def test_functions_are_the_ridge_regression_of_all_rows(stream, centre):
    model, B = LEMON(16, random_state=0, centre=centre), []
    for X, Y in stream:
        model.partial_fit(X, Y, pairs="aligned")
        B.append(unpacked(model, "image"))
    for name in ("image", "text"):
        every, codes = np.concatenate([X[name] for X, _ in stream]), np.concatenate(B)
        expected = every @ np.linalg.solve(every.T @ every + np.eye(every.shape[1]), every.T @ codes)
        if centre:
            W, offset = slow.ridge(every, codes, 1.0)
            expected = every @ W + offset
        np.testing.assert_allclose(model.decision_function({name: every})[name], expected, atol=1e-8)


def test_the_state_keeps_its_size_and_its_balance(stream):
    model, sizes, n = LEMON(16, random_state=0), set(), 0
    for X, Y in stream * 3:
        model.partial_fit(X, Y, pairs="aligned")
        n += len(Y["image"])
        state = model.state_
        arrays = [
            *(state[name] for name in ("H1", "H2", "H3", "H5", "H6")),
            *state["gram"].values(),
            *state["cross"].values(),
        ]
        sizes.add(sum(values.nbytes for values in arrays))
        np.testing.assert_allclose(state["H1"], n * np.eye(16), atol=1e-7 * n)
        assert state["gram"]["image"][-1, -1] == n
    assert len(sizes) == 1


def test_a_saved_model_continues_where_it_was(stream, tmp_path):
    stayed = LEMON(16, random_state=np.random.default_rng(3))
    for X, Y in stream[:2]:
        stayed.partial_fit(X, Y)
    stayed.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    X, Y = stream[2]
    for model in (stayed, loaded):
        model.partial_fit(X, Y)
    for name in X:
        np.testing.assert_array_equal(stayed.codes_[name], loaded.codes_[name])
        np.testing.assert_array_equal(stayed.functions_[name], loaded.functions_[name])


def test_a_late_class_is_as_if_its_column_had_always_been_there(stream, rng):
    late, early = LEMON(16, random_state=0), LEMON(16, random_state=0)
    (X, Y), (X2, Y2), _ = stream
    late.partial_fit(X, Y)
    early.partial_fit(X, {name: np.pad(L, ((0, 0), (0, 2))) for name, L in Y.items()})
    wide = np.hstack([Y2["image"], rng.random((70, 2)) < 0.5])
    for model in (late, early):
        model.partial_fit(X2, dict.fromkeys(X2, wide))
        assert model.classes_.tolist() == list(range(9))
    np.testing.assert_array_equal(late.codes_["image"], early.codes_["image"])
    with pytest.raises(ValueError, match="7 columns; expected the 9 of the earlier chunks first"):
        late.partial_fit(X2, Y2)


def test_a_tiny_chunk_gets_the_codes_of_its_labels(stream):
    model = LEMON(16, random_state=0)
    for X, Y in stream:
        model.partial_fit(X, Y, pairs="aligned")
    codes, before = model.label_codes(Y["image"]), {name: model.state_[name].copy() for name in ("H1", "H3", "H6")}
    model.partial_fit({name: values[:3] for name, values in X.items()}, {name: L[:3] for name, L in Y.items()})
    for name in X:
        np.testing.assert_array_equal(model.codes_[name], codes[:3])
    np.testing.assert_array_equal(model.state_["H1"], before["H1"])
    np.testing.assert_array_equal(model.state_["H6"], before["H6"])
    assert np.any(model.state_["H3"] != before["H3"])


def test_a_class_that_first_comes_in_tiny_chunks_gets_one_code_near_its_items(stream):
    model = LEMON(16, random_state=0)
    for X, Y in stream:
        model.partial_fit(X, Y, pairs="aligned")
    new, found = np.eye(1, 8, 7, dtype=bool), []
    hashed = model.transform({"image": stream[0][0]["image"][:1]})["image"]
    for rows in (slice(0, 1), slice(40, 42)):
        chunk = stream[0][0]["image"][rows]
        model.partial_fit({"image": chunk}, {"image": np.repeat(new, len(chunk), axis=0)})
        found += list(model.codes_["image"])
    np.testing.assert_array_equal([*found, *model.label_codes(new)], np.repeat(hashed, 4, axis=0))


def test_any_modality_may_be_missing_in_a_chunk(stream):
    model = LEMON(16, random_state=0)
    (X, Y), (X2, Y2), _ = stream
    model.partial_fit(X, Y)
    image, text = model.functions_["image"].copy(), model.functions_["text"].copy()
    model.partial_fit({"text": X2["text"]}, {"text": Y2["text"]})
    assert list(model.codes_) == ["text"]
    np.testing.assert_array_equal(model.functions_["image"], image)
    assert np.any(model.functions_["text"] != text)
    assert model.transform(X)["image"].shape == (90, 2)


def test_items_with_the_same_labels_share_a_code_of_a_chunk_paired_or_not(stream):
    X, Y = stream[0]
    order = np.arange(90)[::-1]
    X, Y = X | {"text": X["text"][order]}, Y | {"text": Y["text"][order]}
    apart = LEMON(16, random_state=0).fit(X, Y)
    some = LEMON(16, random_state=0).fit(X, Y, pairs=np.column_stack([np.arange(50), order[:50]]))
    for model in (apart, some):
        np.testing.assert_array_equal(model.codes_["image"], model.codes_["text"][order])


def test_what_does_not_fit_is_refused_and_changes_nothing(stream):
    (X, Y), (X2, Y2), _ = stream
    with pytest.raises(ValueError, match="n_bits is 16, but there are only 9 items"):
        LEMON(16).partial_fit({"image": X["image"][:9]}, {"image": Y["image"][:9]})
    model = LEMON(16, random_state=0).partial_fit(X, Y)
    before = {name: value.copy() for name, value in model.functions_.items()}
    with pytest.raises(TypeError, match="'text': the labels are a frame"):
        model.partial_fit(
            {"text": X2["text"]},
            {"text": pa.table({str(c): column for c, column in enumerate(Y2["text"].T.astype(int))})},
        )
    with pytest.raises(ValueError, match="of 70 pairs have different labels in 'image' and 'text'; LEMON takes"):
        model.partial_fit(X2, Y2 | {"text": ~Y2["text"] | Y2["text"][:, ::-1]}, pairs="aligned")
    with pytest.raises(ValueError, match=r"'sound'.*fitted on 'image', 'text'"):
        model.partial_fit({"sound": X2["text"]}, {"sound": Y2["text"]})
    for name, value in before.items():
        np.testing.assert_array_equal(model.functions_[name], value)
