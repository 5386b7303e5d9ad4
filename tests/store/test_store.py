"""The store: nothing committed is lost, nothing half done is kept, and errors say what to do."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from modalhash.engine import refresh
from modalhash.index import HammingIndex
from modalhash.store import Record, Revision, Store, StoreError
from modalhash.store.database import APPLICATION, StoreBusyError, StoreFullError

WRITER = Path(__file__).with_name("killed_writer.py")


def record(identity, modality="text", **more):
    more.setdefault("code", identity.encode()[:2].ljust(2, b"\0"))
    return Record(identity, modality, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.db"


@pytest.fixture
def store(path):
    with Store(path, n_bits=16) as opened:
        yield opened


def test_what_goes_in_comes_out(store, path):
    full = Record(
        "Foto-ü-😀",
        "image",
        np.array([1, 255], np.uint8),
        "learned",
        None,
        "fotos/ü.jpg",
        ("Meer", 7),
        {"jahr": [1, None]},
    )
    bare = record("b", text="")
    assert store.add([full, bare]).tolist() == [1, 2]
    with Store(path) as again:
        found = again.get("Foto-ü-😀")
        assert found == Record(**{**vars(full), "code": b"\x01\xff"})
        assert again.get("b") == bare
        assert again.n_bits == 16
        assert again.numbers(["b", "nobody"]) == {"b": 2}
        assert again.records([2, 99]) == {2: bare}
        assert again.counts() == {("image", "learned"): 1, ("text", "hashed"): 1}
        assert [again.count(), again.count("image"), again.count("sound"), len(again)] == [2, 1, 0, 2]
        assert "b" in again
        assert "c" not in again
        assert [r.id for r in again.scan()] == ["Foto-ü-😀", "b"]
        assert [r.id for r in again.scan(modality="text")] == ["b"]
        again.check()


def test_batches_are_whole(store):
    store.add([record("a")])
    for bad, error, message in [
        ([record("b"), record("a")], ValueError, r"1 of 2 ids are in the store already \(first: 'a'\)"),
        ([record("b"), record("b")], ValueError, "'b' is given twice"),
        ([record("b"), record("c", code=b"1")], ValueError, "item 'c': code: got shape"),
        ([record("b"), record("c", code=b"\1\2", kind="guessed")], ValueError, "'guessed'"),
        ([record("b"), record("c", extra={"x": {1}})], TypeError, "item 'c': extra cannot be written as JSON"),
        ([record("b"), record("c", extra={"x": float("nan")})], TypeError, "JSON"),
        ([record("b"), record("c", labels="sea")], TypeError, "several texts or integers|texts or integers"),
        ([record("b"), record("c", text=3)], TypeError, "text is int"),
        ([record("b"), Record("", "text", b"12")], ValueError, "non-empty text"),
        ([record("b"), Record("c", "", b"12")], ValueError, "non-empty text"),
        ([record("b"), Record("c\0", "text", b"12")], ValueError, "without NUL"),
        ([record("b"), {"id": "c"}], TypeError, "got dict"),
    ]:
        with pytest.raises(error, match=message):
            store.add(bad)
        assert [r.id for r in store.scan()] == ["a"]
    assert store.add([record("b")]).tolist() == [2], "a batch that failed takes no numbers"
    assert store.add([]).tolist() == []


def test_replace_and_remove(store):
    store.add([record("a"), record("b"), record("c")])
    assert store.add([record("b", code=b"zz"), record("d")], replace=True).tolist() == [4, 5]
    assert store.get("b").code == b"zz"
    assert store.count() == 4
    with pytest.raises(KeyError, match="1 of 2 ids are not in the store"):
        store.remove(["a", "nobody"])
    assert "a" in store
    assert store.remove(["a", "nobody", "a"], missing="ignore") == 1
    with pytest.raises(KeyError, match="'a'"):
        store.get("a")
    with pytest.raises(TypeError, match=r"expected several ids, e.g. \['b'\]"):
        store.remove("b")
    assert store.remove(["d"]) == 1
    assert store.add([record("e")]).tolist() == [6], "a number is never used again, not even the last one"


def test_an_index_follows_two_stores(store, path, rng):
    """Another process's changes (here: another connection's) reach the index; positions say that there are some."""
    index, model = HammingIndex(16), {}
    reached = refresh(index, store)
    assert reached == Revision(0, 0)
    with Store(path) as other:
        for step in range(30):
            writer = (store, other)[step % 2]
            batch = [
                Record(str(number), ("image", "text")[number % 2], rng.bytes(2))
                for number in rng.choice(40, 5, replace=False)
            ]
            writer.add(batch, replace=True)
            model.update({each.id: each for each in batch})
            gone = [str(number) for number in rng.choice(40, 3, replace=False)]
            writer.remove(gone, missing="ignore")
            for identity in gone:
                model.pop(identity, None)
            before, reached = reached, refresh(index, store, reached)
            assert reached != before
            assert refresh(index, store, reached) == reached
            names = {number: identity for identity, number in store.numbers(model).items()}
            ids, codes = index.dump()
            assert {names[number]: code.tobytes() for number, code in zip(ids.tolist(), codes, strict=True)} == {
                identity: each.code for identity, each in model.items()
            }
        texts = index.dump(group=store.modalities()["text"])[0]
        assert sorted(names[number] for number in texts.tolist()) == sorted(
            each.id for each in model.values() if each.modality == "text"
        )
        fresh = HammingIndex(16)
        assert refresh(fresh, other) == reached
        np.testing.assert_array_equal(fresh.dump()[1], index.dump()[1])
    with pytest.raises(ValueError, match="8 bits"):
        refresh(HammingIndex(8), store)


def test_codes_come_in_pages(store, monkeypatch):
    monkeypatch.setattr("modalhash.store.store.PAGE", 7)
    store.add([record(f"{i:02}", ("image", "text")[i % 2]) for i in range(40)])
    pages = list(store.codes())
    assert [len(numbers) for numbers, _, _ in pages] == [7] * 5 + [5]
    assert np.concatenate([numbers for numbers, _, _ in pages]).tolist() == list(range(1, 41))
    assert b"".join(codes.tobytes() for _, _, codes in pages) == "".join(f"{i:02}" for i in range(40)).encode()
    assert sum(len(numbers) for numbers, _, _ in store.codes(modality="text")) == 20
    assert list(store.codes(modality="sound")) == []
    assert [r.id for r in store.scan(modality="image")] == [f"{i:02}" for i in range(0, 40, 2)]


def test_format_1_is_read(path):
    """A store that an earlier version wrote."""
    connection = sqlite3.connect(path)
    connection.executescript(Path(__file__).with_name("store-format-1.sql").read_text(encoding="utf-8"))
    connection.close()
    with Store(path) as store:
        store.check()
        assert [store.n_bits, store.count(), store.revision()] == [12, 2, Revision(3, 1)]
        photo, text = (
            Record("Foto-1", "image", b"\xab\xc0", "learned", None, "fotos/1.jpg", ("Meer", 7), {"jahr": 2006}),
            store.get("Satz-1"),
        )
        assert store.get("Foto-1") == photo
        assert text == Record("Satz-1", "text", b"\x12\x30", text="ein rotes Boot, „schön“")
        assert store.add([Record("neu", "text", b"\0\0")]).tolist() == [4]


# -- files that are not what they should be


def test_no_file_and_wrong_bits(path):
    with pytest.raises(FileNotFoundError, match="give n_bits to create"):
        Store(path)
    assert not path.exists()
    with pytest.raises(ValueError, match="n_bits is 0"):
        Store(path, n_bits=0)
    Store(path, n_bits=16).close()
    with pytest.raises(StoreError, match="holds codes of 16 bits; n_bits is 32"):
        Store(path, n_bits=32)


def test_foreign_files_are_refused_and_left_alone(path):
    path.write_bytes(b"a photo, perhaps" * 100)
    with pytest.raises(StoreError, match="not an SQLite file"):
        Store(path, n_bits=16)
    assert path.read_bytes() == b"a photo, perhaps" * 100
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(path, n_bits=16)
    assert path.read_bytes() == content


def test_newer_format_is_refused(path):
    Store(path, n_bits=16).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match=r"has format 9; this version reads up to 1\. Upgrade"):
        Store(path)


def test_empty_file_left_by_a_killed_process(path):
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        Store(path)
    with Store(path, n_bits=16) as store:
        assert store.count() == 0
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    connection.close()


def test_damage_is_an_error(path):
    with Store(path, n_bits=16) as store:
        store.add([record(f"item {i}", code=b"\1\2", text="x" * 200) for i in range(2000)])
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="damaged"), Store(path) as store:  # at opening or at reading
        list(store.codes())
    for place in range(8192, len(content), 4096):
        content[place : place + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), Store(path) as store:
        store.check()


def test_closed_store_says_so(path):
    store = Store(path, n_bits=16)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.count()


# -- trouble while writing


def test_full_disk_loses_nothing(path):
    with Store(path, n_bits=16) as store:
        store.add([record(f"old {i}") for i in range(100)])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(StoreFullError, match="make room and repeat"):
            store.add([record(f"new {i}", text="x" * 500) for i in range(1000)])
        assert store.count() == 100
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.add([record(f"new {i}", text="x" * 500) for i in range(1000)])
    with Store(path) as again:
        again.check()
        assert again.count() == 1100


def test_busy_writer_is_named(path):
    with Store(path, n_bits=16, timeout=0.05) as store, Store(path) as other:
        other._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="another process is writing"):
            store.add([record("a")])
        assert store.count() == 0, "reading goes on"
        other._connection.execute("ROLLBACK")
        store.add([record("a")])


def test_interrupt_leaves_nothing(store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("modalhash.store.store.to_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add([record("a")])
    assert store.count() == 0
    store.add([record("a")])


def test_threads_share_a_store(store):
    def work(writer):
        for batch in range(10):
            store.add([record(f"{writer}-{batch}-{i}") for i in range(5)])
            assert store.get(f"{writer}-{batch}-4")

    threads = [threading.Thread(target=work, args=(writer,)) for writer in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count() == 150


def start(path, writer, first=0, size=50, batches=100_000):
    command = [sys.executable, str(WRITER), str(path), writer, str(first), str(size), str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("statement", range(8))
def test_another_process_creates_the_store_between_two_looks(path, monkeypatch, statement):
    class Overtaken(sqlite3.Connection):
        left = statement

        def execute(self, *arguments):
            self.left -= 1
            if self.left == -1:
                monkeypatch.undo()
                Store(path, n_bits=16).close()
            return super().execute(*arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Overtaken, **kwargs))
    with Store(path, n_bits=16) as store:
        assert store.n_bits == 16
        store.add([record("a")])
        assert sqlite3.connect is connect  # the other was there


def test_two_processes_write_at_once(path):
    """Both also create the store: whoever comes second finds it."""
    writers = [start(path, name, size=20, batches=15) for name in "ab"]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with Store(path) as store:
        store.check()
        assert store.count() == 2 * 20 * 15
        assert Counter(each.id[0] for each in store.scan()) == {"a": 300, "b": 300}


def test_killed_while_adding(path):
    """Every batch that was reported is there, every batch that is there is whole, and no repair is needed."""
    size, committed, draw = 50, set(), random.Random(0)
    for attempt in range(4):
        first = max(committed, default=-1) + 2  # the last one may be in although its report was lost
        process = start(path, "w", first, size)
        reported = 0
        until = draw.randint(1, 12)
        for line in process.stdout:
            if line.strip().isdigit():
                committed.add(int(line))
                reported += 1
            if reported >= until:
                threading.Event().wait(draw.random() * 0.01)  # somewhere inside the next batch
                break
        process.kill()
        committed.update(int(line) for line in process.stdout if line.strip().isdigit())
        process.wait()
        shutil.copytree(path.parent, path.parent.with_name(f"copy-{attempt}"))  # as a crash leaves it
        with Store(path.parent.with_name(f"copy-{attempt}") / path.name) as copy:
            copy.check()
        with Store(path) as store:
            found = Counter(int(each.id.split("-")[1]) for each in store.scan())
        assert set(found.values()) == {size}, "no batch is there in part"
        assert committed <= set(found), "what was committed is there"
        assert len(set(found) - committed) <= attempt + 1
