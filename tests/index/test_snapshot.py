"""Snapshots of indexes: what they hold is what was frozen, and damage is always noticed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modalhash.index import HammingIndex, Snapshot, SnapshotError, VectorTable, freeze, snapshot, write_snapshot
from modalhash.index.layout import MIN_NUMBERED

WIDTH = 128


def random_codes(n, n_bits, seed=0):
    codes = np.random.default_rng(seed).integers(0, 256, (n, -(-n_bits // 8)), dtype=np.uint8)
    if n_bits % 8:
        codes[:, -1] &= 256 - 2 ** (8 - n_bits % 8)
    return codes


def random_vectors(n, seed=1):
    return np.random.default_rng(seed).integers(-128, 128, (n, WIDTH), dtype=np.int8)


def filled_index(n_bits=64, n=500, repeated=False):
    """An index of two groups; with ``repeated`` codes, one of which is a table of codes with rows after it."""
    index, codes = HammingIndex(n_bits), random_codes(n, n_bits)
    if repeated:
        codes = codes[np.random.default_rng(2).integers(0, 50, n)]
    index.add(np.arange(1, n + 1) * 3, codes, group=1)
    index.search(codes[:1], k=1)  # numbers the codes, if they repeat
    index.add(np.arange(10 * n, 10 * n + 40), random_codes(40, n_bits, 3), group=1)
    index.add(np.arange(20 * n, 20 * n + 90), random_codes(90, n_bits, 4), group=4)
    return index


def filled_vectors(n=500):
    table = VectorTable(WIDTH)
    table.add(np.arange(1, n + 1) * 3, random_vectors(n), group=np.arange(n) % 2)
    table.remove([3, 9])
    return table


def thawed(path, n_bits=64):
    index, table = HammingIndex(n_bits), VectorTable(WIDTH)
    Snapshot(path).thaw({"codes": index}, {"vectors": table})
    return index, table


def assert_same_answers(one, other, n_bits):
    queries = random_codes(20, n_bits, 9)
    for options in ({"k": 7}, {"radius": n_bits // 3}, {"k": 5, "group": 4}, {"k": 5, "ids": np.arange(0, 900, 2)}):
        expected, found = one.search(queries, **options), other.search(queries, **options)
        assert np.array_equal(expected.ids, found.ids)
        assert np.array_equal(expected.distances, found.distances)
    assert one.groups == other.groups
    assert [values.tolist() for values in one.dump()] == [values.tolist() for values in other.dump()]


@pytest.fixture
def path(tmp_path):
    """A snapshot of a small index and a table of vectors."""
    write_snapshot(
        tmp_path / "index.snapshot",
        freeze({"codes": filled_index()}, {"vectors": filled_vectors()}),
        {"revision": [5, 2]},
    )
    return tmp_path / "index.snapshot"


@pytest.mark.parametrize("n_bits", [12, 32, 64, 128, 200])
@pytest.mark.parametrize("repeated", [False, True])
def test_an_index_from_a_snapshot_answers_as_the_one_that_was_frozen(n_bits, repeated, tmp_path):
    n = 2 * MIN_NUMBERED if repeated else 500
    index = filled_index(n_bits, n, repeated)
    write_snapshot(tmp_path / "one", freeze({"codes": index}, {"vectors": VectorTable(WIDTH)}), {})
    copy, _ = thawed(tmp_path / "one", n_bits)
    assert (copy._groups[1]._base is not None) == repeated
    assert_same_answers(index, copy, n_bits)


@pytest.mark.parametrize("repeated", [False, True])
def test_changes_after_a_snapshot_leave_the_file_as_it_is(repeated, tmp_path):
    n = 2 * MIN_NUMBERED if repeated else 500
    index = filled_index(64, n, repeated)
    write_snapshot(tmp_path / "one", freeze({"codes": index}, {"vectors": VectorTable(WIDTH)}), {})
    before = (tmp_path / "one").read_bytes()
    copy, _ = thawed(tmp_path / "one")
    for one in (index, copy):
        one.add(np.arange(30 * n, 30 * n + 300), random_codes(300, 64, 7), group=1)
        one.add([2], random_codes(1, 64, 8), group=4)
        one.remove([3, 6, 30 * n + 1])
    assert_same_answers(index, copy, 64)
    assert (tmp_path / "one").read_bytes() == before


def test_rows_are_appended_in_the_room_after_those_of_the_snapshot(path):
    index, table = thawed(path)
    words = index._groups[1]._words
    index.add([10**6], random_codes(1, 64), group=1)
    assert index._groups[1]._words is words
    rows = table._view.rows
    table.add([10**6], random_vectors(1))
    assert table._view.rows is rows


def test_vectors_from_a_snapshot_are_those_that_were_frozen(path):
    expected, (_, table) = filled_vectors(), thawed(path)
    assert len(table) == len(expected) == 498
    for each in (expected, table):
        each.add([5000, 5001], random_vectors(2, 5), group=1)
        each.remove([6, 5000])
    wanted = np.array([12, 5001, 1500, 7])
    assert np.array_equal(table.find(wanted).present, [True, True, True, False])
    assert np.array_equal(table.find(wanted).vectors(), expected.find(wanted).vectors())
    assert np.array_equal(table.find(wanted).groups, expected.find(wanted).groups)


def test_vectors_that_outgrow_the_room_are_copied(path):
    _, table = thawed(path)
    n = len(table._view.ids)
    rows = table._view.rows
    table.add(np.arange(10**6, 10**6 + n), random_vectors(n, 6))
    assert table._view.rows is not rows
    assert np.array_equal(table.find(np.array([12])).vectors()[0], random_vectors(500)[3])
    assert np.array_equal(table.find(np.array([10**6])).vectors()[0], random_vectors(n, 6)[0])


def test_a_snapshot_of_a_snapshot_is_the_same(path, tmp_path):
    index, table = thawed(path)
    write_snapshot(tmp_path / "second", freeze({"codes": index}, {"vectors": table}), {"revision": [5, 2]})
    assert (tmp_path / "second").read_bytes() == path.read_bytes()


def test_what_was_frozen_is_written_whatever_changes_meanwhile(tmp_path):
    index, table = filled_index(), filled_vectors()
    frozen = freeze({"codes": index}, {"vectors": table})
    index.add([77777], random_codes(1, 64), group=1)
    index.remove([6])
    table.remove([12])
    write_snapshot(tmp_path / "one", frozen, {})
    copy, vectors = thawed(tmp_path / "one")
    assert_same_answers(filled_index(), copy, 64)
    assert vectors.find(np.array([12])).groups.tolist() == [1]


def test_rows_that_are_added_while_it_is_written_do_no_harm(tmp_path, monkeypatch):
    index = filled_index()
    frozen = freeze({"codes": index}, {})
    checksum, numbers = snapshot._checksum, iter(range(10**6, 2 * 10**6))

    def add_after_checksum(piece):
        found = checksum(piece)
        index.add([next(numbers)], random_codes(1, 64), group=4)  # in the last chunk of those that are written
        return found

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "_checksum", add_after_checksum)
        write_snapshot(tmp_path / "one", frozen, {})
    copy = HammingIndex(64)
    Snapshot(tmp_path / "one").thaw({"codes": copy}, {})
    assert_same_answers(filled_index(), copy, 64)


def test_facts_are_read_without_the_arrays(path):
    from modalhash.index import read_snapshot_facts

    facts, size = read_snapshot_facts(path)
    assert facts == {"revision": [5, 2]} == Snapshot(path).facts
    assert size == path.stat().st_size


def test_what_happens_to_the_file_of_an_open_snapshot_changes_no_answer(path):
    index, table = thawed(path)
    size = path.stat().st_size
    with path.open("r+b") as file:  # in place, so that the file stays the one that was opened
        file.write(b"\xff" * size)
        file.truncate(100)
    assert_same_answers(filled_index(), index, 64)
    wanted = np.arange(12, 1500, 3)
    assert np.array_equal(table.find(wanted).vectors(), filled_vectors().find(wanted).vectors())
    index.add([10**6], random_codes(1, 64), group=1)
    table.remove(np.arange(3, 1200, 3))  # copies what is left


def test_a_flipped_bit_anywhere_is_noticed(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    header = snapshot._START.size + snapshot._START.unpack(whole[: snapshot._START.size])[1]
    places = [*range(16), *rng.integers(header, size=100), *rng.integers(header, len(whole), 60), *range(-32, 0)]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            Snapshot(path)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.99, 0.9999])
def test_a_cut_file_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(SnapshotError, match=r"is truncated( or|,) damaged"):
        Snapshot(path)


def test_other_files_are_refused(path, tmp_path):
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(SnapshotError):
        Snapshot(path)
    path.write_bytes(b"\0" * 10_000)
    with pytest.raises(SnapshotError):
        Snapshot(path)
    with pytest.raises(SnapshotError, match="cannot be read"):
        Snapshot(tmp_path / "missing")
    with pytest.raises(SnapshotError, match="cannot be read"):
        Snapshot(tmp_path)


def test_codes_of_another_length_are_refused(path):
    index = HammingIndex(32)
    with pytest.raises(SnapshotError, match="codes of 64 bits; expected 32"):
        Snapshot(path).thaw({"codes": index}, {})
    assert len(index) == 0


def rewritten(path, name, change):
    """Change one array of a snapshot and make its digest right, as a forged file would have it."""
    one = Snapshot(path)
    values = {other: space[:n] for other, (space, n) in one._arrays.items()}
    change(values[name])
    whole = path.read_bytes()
    _, length = snapshot._START.unpack(whole[: snapshot._START.size])
    with path.open("wb") as file:
        snapshot._write(whole[snapshot._START.size :][:length], list(values.values()), file)


@pytest.mark.parametrize("part", ["numbers", "rows", "starts"])
def test_places_outside_of_an_array_are_refused(part, tmp_path):
    path = tmp_path / "one"
    write_snapshot(path, freeze({"codes": filled_index(64, 2 * MIN_NUMBERED, True)}, {}), {})
    before = path.read_bytes()
    rewritten(path, f"codes/1/base/{part}", lambda values: None)
    assert path.read_bytes() == before

    def point_outside(values):
        values[len(values) // 2] = np.iinfo(np.uint16).max * 8 if values.itemsize > 2 else np.iinfo(values.dtype).max

    rewritten(path, f"codes/1/base/{part}", point_outside)
    with pytest.raises(SnapshotError, match="is invalid"):
        Snapshot(path).thaw({"codes": HammingIndex(64)}, {})


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": "<f8"},
        {"capacity": 499},
        {"capacity": 10**30},
        {"shape": [-500]},
        {"shape": []},
        {"shape": [10**15]},
        {"more": 1},
    ],
)
def test_arrays_that_cannot_be_are_refused(change, path):
    whole = path.read_bytes()
    _, length = snapshot._START.unpack(whole[: snapshot._START.size])
    header = json.loads(whole[snapshot._START.size :][:length])
    header["arrays"]["vectors/ids"] |= change
    values = [space[:n] for space, n in Snapshot(path)._arrays.values()]
    with path.open("wb") as file:
        snapshot._write(json.dumps(header).encode(), values, file)
    with pytest.raises(SnapshotError):
        Snapshot(path)
