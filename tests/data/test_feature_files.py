"""Folders of shards as dask arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dask_cluster import need_dask
from modalhash.data import ReadError, feature_tables, open_feature_files

need_dask_installed = pytest.fixture(autouse=True)(need_dask)


@pytest.fixture
def rows(rng):
    return rng.normal(size=(50, 6)).astype(np.float32)


def write_npy(folder, rows):
    for i, part in enumerate(np.split(rows, [13, 20])):
        np.save(folder / f"{i:03}.npy", part)


def write_lists(folder, rows):
    import pyarrow as pa
    from pyarrow import parquet

    kinds = (pa.list_(pa.float32()), pa.list_(pa.float32(), 6), pa.large_list(pa.float32()))
    for i, (part, kind) in enumerate(zip(np.split(rows, [13, 20]), kinds, strict=True)):
        parquet.write_table(
            pa.table({"features": pa.array(part.tolist(), kind)}), folder / f"{i:03}.parquet", row_group_size=10
        )


def write_columns(folder, rows):
    import pyarrow as pa
    from pyarrow import parquet

    for i, part in enumerate(np.split(rows, [13, 20])):
        table = pa.table({f"f{column}": part[:, column] for column in range(6)})
        parquet.write_table(table, folder / f"{i:03}.parquet")


def write_zarr(folder, rows):
    import zarr

    zarr.create_array(str(folder), shape=rows.shape, chunks=(20, 6), dtype=rows.dtype, overwrite=True)[:] = rows


@pytest.mark.parametrize("write", [write_npy, write_lists, write_columns, write_zarr])
def test_the_rows_of_all_files_in_order(tmp_path, rows, write, monkeypatch):
    monkeypatch.setattr(feature_tables, "CHUNK_BYTES", 8 * 24)  # eight rows of .npy at a time
    write(tmp_path, rows)
    array = open_feature_files(tmp_path)
    assert (array.shape, array.dtype) == (rows.shape, rows.dtype)
    assert len(array.chunks[0]) > 2
    np.testing.assert_array_equal(array.compute(scheduler="synchronous"), rows)


def test_columns_of_choice(tmp_path, rows):
    write_columns(tmp_path, rows)
    array = open_feature_files(tmp_path, columns=["f4", "f1"])
    np.testing.assert_array_equal(array.compute(scheduler="synchronous"), rows[:, [4, 1]])


def unlike(folder, rows):
    write_npy(folder, rows)
    np.save(folder / "zz.npy", rows[:, :5])


def pickled(folder, rows):
    np.save(folder / "a.npy", np.array([[object()]]), allow_pickle=True)


def uneven(folder, rows):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"features": [[1.0, 2.0], [1.0]]}), folder / "a.parquet")


def texts(folder, rows):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"title": ["a", "b"]}), folder / "a.parquet")


REFUSED = {
    "nothing": (lambda folder, rows: None, "no .npy or .parquet files"),
    "two kinds": (lambda folder, rows: (write_npy(folder, rows), write_lists(folder, rows)), "both .npy and .parquet"),
    "unlike": (unlike, r"zz.npy: 5 columns of float32; 000.npy has 6"),
    "pickled": (pickled, "cannot be read as a matrix"),
    "one dimension": (lambda folder, rows: np.save(folder / "a.npy", rows[0]), r"shape \(6,\); expected"),
    "broken": (lambda folder, rows: (folder / "a.parquet").write_bytes(b"PAR1"), "cannot be read as Parquet"),
    "uneven lists": (uneven, "lists of different lengths"),
    "texts": (texts, "values; expected numbers"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_matrix_is_refused(tmp_path, rows, what):
    write, message = REFUSED[what]
    write(tmp_path, rows)
    with pytest.raises(ReadError, match=message):
        open_feature_files(tmp_path)


def test_a_missing_column_is_named(tmp_path, rows):
    write_columns(tmp_path, rows)
    with pytest.raises(ReadError, match="no column 'f9'; it has f0"):
        open_feature_files(tmp_path, columns=["f9"])
