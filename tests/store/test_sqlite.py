"""The store in an SQLite file: nothing committed is lost, nothing half done is kept, and errors say what to do."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from store_contract import StoreContract, record, texts

from modalhash.core.progress import StoppedError, should_stop
from modalhash.store import Filter, Record, Revision, SqliteStore, StoreError, StoreFullError
from modalhash.store.sqlite.schema import APPLICATION_ID, UNRELEASED_ID

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.db"


@pytest.fixture
def store(path):
    with SqliteStore(path, n_bits=16) as opened:
        yield opened


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def open_store(self, path, monkeypatch):
        monkeypatch.setattr("modalhash.store.sqlite.store._PAGE_ROWS", 7)  # so that reading takes several pages
        return lambda n_bits=None, timeout=60.0: SqliteStore(path, n_bits=n_bits, timeout=timeout)

    @pytest.fixture
    def block_writers(self, path):
        @contextmanager
        def block():
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
            connection.close()

        return block


def test_codes_come_in_pages(store, monkeypatch):
    monkeypatch.setattr("modalhash.store.sqlite.store._PAGE_ROWS", 7)
    store.add([record(f"{i:02}") for i in range(40)])
    assert [len(numbers) for numbers, _, _ in store.codes()] == [7] * 5 + [5]


# -- labels


@pytest.mark.parametrize("few", [0, 3, 200_000])
def test_labels_are_combined_alike_whether_few_or_many_items_have_them(store, monkeypatch, few):
    monkeypatch.setattr("modalhash.store.sqlite.labels._FEW", few)
    store.add([record(f"{n:02}", labels=[name for name, step in zip("abc", (2, 3, 7), strict=True) if n % step == 0])
               for n in range(50)])  # fmt: skip
    for where, expected in {
        "label = a and label = C": [n for n in range(50) if n % 2 == 0 and n % 7 == 0],
        "label = c and not label = a": [n for n in range(50) if n % 7 == 0 and n % 2],
        "label = a and (label = b or label != c)": [n for n in range(50) if n % 2 == 0 and (n % 3 == 0 or n % 7)],
        "label != a and label != b": [n for n in range(50) if n % 2 and n % 3],
        "label = a and label = d": [],
    }.items():
        assert (store.matching(Filter.parse(where)) - 1).tolist() == expected, where


def test_a_filter_by_labels_reads_no_items(store):
    store.add([record("a", labels=("sea",)), record("b", labels=("boat", "sea")), record("c")])
    read = []
    with store._readers.take() as reader:  # the one that is used next
        reader.connection.set_authorizer(lambda action, table, *_: read.append(table) or sqlite3.SQLITE_OK)
    for where in ("label = sea", "label = sea and not label = boat", "label in (sea, boat)"):
        assert len(store.matching(Filter.parse(where)))
    store.labels()
    assert {"label", "item_label"} <= set(read)
    assert "item" not in read


# -- several threads


def in_thread(work):
    """Return the result of ``work`` in another thread; fail if it waits for this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(20)


def test_a_read_waits_neither_for_another_read_nor_for_a_change(store):
    store.add([record("a")])
    with store._reading() as reader:
        assert reader.connection.execute("SELECT count(*) FROM item").fetchone() == (1,)
        assert in_thread(store.count) == 1
    with store._change():
        store._insert(store._connection, [record("b")])
        assert store.count() == 2, "the thread sees its own change"
        assert in_thread(store.count) == 1
    assert in_thread(store.count) == 2


def test_connections_are_kept_for_the_next_reads_and_closed_with_the_store(tmp_path):
    with SqliteStore(tmp_path / "items.db", n_bits=16) as store:
        with store._reading() as one, store._reading() as other:
            assert one is not other
        with store._reading() as again:
            assert again in (one, other)
    for reader in (one, other):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            reader.connection.execute("SELECT 1")


def test_a_file_that_replaced_the_store_is_not_read(tmp_path, store):
    """A store that is open reads its own file, whatever has its name now; new connections would read another."""
    store.add([record("a")])
    assert store.count() == 1
    with SqliteStore(tmp_path / "other.db", n_bits=16) as other:
        other.add([record(id) for id in "abc"])
    (tmp_path / "other.db").replace(store.path)
    assert store.revision_if_ready() is not None, "by an idle connection"
    with store._reading():
        assert store.revision_if_ready() is None
        assert in_thread(store.count) == 1, "by the connection that changes"
    assert store.count() == 1


def test_a_read_is_stopped_when_its_time_is_over(store):
    store.add([record("a")])
    asked = []
    token = should_stop.set(lambda: len(asked) > 3 or asked.append(1))
    try:
        with pytest.raises(StoppedError, match="too long"):
            store._rows("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
        with pytest.raises(StoppedError):
            store.count()
    finally:
        should_stop.reset(token)
    assert store.count() == 1


# -- words


@pytest.fixture
def without_words(monkeypatch):
    """An SQLite without FTS5, until the monkeypatch is undone."""
    monkeypatch.setattr("modalhash.store.sqlite.words.has_words", lambda connection: False)
    return monkeypatch


def test_tidying_leaves_one_segment_of_words(store, path):
    def n_segments():
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT count(DISTINCT segid) FROM item_word_idx").fetchone()[0]

    for portion in range(6):
        store.add([record(f"{portion}-{n}", text=f"word{n} {portion}") for n in range(200)])
    assert n_segments() > 1
    store.optimize()
    assert n_segments() == 1
    assert not store.damage()
    with SqliteStore(path, read_only=True) as reader:
        reader.optimize()  # nothing that it may do


def test_without_fts5_there_is_a_warning_and_all_else_works(path, without_words):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a", text="a dinosaur"), record("b", text="a dinosaur")])
        with pytest.warns(UserWarning, match="was built without FTS5, so texts are not searched"):
            assert store.search_text("dinosaur").tolist() == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert store.search_text("dinosaur").tolist() == [], "said once"
        store.remove(texts("b"))
        store.optimize()
    without_words.undo()
    with SqliteStore(path) as store:
        assert store.search_text("dinosaur").tolist() == [1]
        store.add([record("c", text="a dinosaur")])
    without_words.setattr("modalhash.store.sqlite.words.has_words", lambda connection: False)
    with SqliteStore(path) as store:
        store.remove(texts("a"))
        store.add([record("d", text="a dinosaur")])
    without_words.undo()
    with SqliteStore(path) as store:
        assert store.search_text("dinosaur").tolist() == [3, 4]
        store.remove(texts("c", "d"))
        assert store.search_text("dinosaur").tolist() == []
        store.check()


def test_the_fields_that_are_searched_can_change(path):
    fields = {"title": "a dinosaur", "name": "a heron", "year": 1913}
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a", extra=fields)])
        assert [store.search_text(word).tolist() for word in ("dinosaur", "heron", "1913")] == [[1], [], []]
    with SqliteStore(path, searched_fields=["name"]) as store, SqliteStore(path) as other:
        other.add([record("b", extra=fields)])
        assert [store.search_text(word).tolist() for word in ("dinosaur", "heron")] == [[], [1, 2]]
    with SqliteStore(path, searched_fields=[]) as store:
        assert [store.search_text(word).tolist() for word in ("dinosaur", "heron")] == [[], []]
        store.remove(texts("a"))
        store.check()
    with SqliteStore(path, searched_fields=("title",)) as store:
        assert store.search_text("dinosaur").tolist() == [2]


def test_a_word_that_very_many_items_have_is_not_ranked_by(store, monkeypatch):
    monkeypatch.setattr("modalhash.store.sqlite.words.MAX_RANKED", 12)
    store.add([record(f"{n:02}", text="a boat" if n < 14 else "a ship") for n in range(100)])
    store.add([record("x", text="a boat with a dinosaur, boat boat")])
    assert store.search_text("a boat with a dinosaur").tolist() == [101]
    assert store.search_text("a boat", limit=3).tolist() == [1, 2, 3], "the first that have both"
    assert store.search_text("boat", where=Filter.parse("id = x")).tolist() == [101]


def test_what_is_remembered_of_words_is_forgotten_when_anybody_writes(path, store):
    def found(query, **options):
        numbers = store.search_text(query, **options)
        records = store.records(numbers)
        return [records[number].id for number in numbers.tolist()]

    store.add([record(f"d{n}", text="other things") for n in range(30)])
    store.add([record("a", text="red boat"), record("b", text="blue car")])
    assert found("red car") == ["a", "b"]
    assert found("red car", match_all=True) == []
    store.add([record("c", text="red car")])
    assert found("red car") == found("red car", match_all=True) == ["c"]
    with SqliteStore(path) as other:
        other.remove([("text", "c")])
        assert found("red car", match_all=True) == []
        other.add([record("e", text="a red, red car"), record("f", text="red")])
    assert found("red car") == ["e"]
    assert sorted(found("red")) == ["a", "e", "f"]


def test_a_common_word_orders_and_finds_nothing(store):
    store.add([record(f"{n:02}", text="a red ship" if n < 40 else "a ship") for n in range(100)])
    store.add([record("x", text="a heron"), record("y", text="a red heron")])
    assert store.search_text("red heron").tolist() == [102], "what has all words"
    assert store.search_text("heron").tolist() == [101, 102]
    store.add([record("z", text="a dinosaur")])
    assert store.search_text("red heron and dinosaur").tolist() == [102], "or else what has most of them"
    assert len(store.search_text("red", limit=50)) == 41


# -- files that are not what they should be


def test_no_file(path):
    with pytest.raises(FileNotFoundError, match="give n_bits to create"):
        SqliteStore(path)
    assert not path.exists()


def test_foreign_files_are_refused_and_left_alone(path):
    path.write_bytes(b"a photo, perhaps" * 100)
    with pytest.raises(StoreError, match="not an SQLite file"):
        SqliteStore(path, n_bits=16)
    assert path.read_bytes() == b"a photo, perhaps" * 100
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path, n_bits=16)
    assert path.read_bytes() == content


def test_newer_format_is_refused(path):
    SqliteStore(path, n_bits=16).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match=r"has format 9; this version reads up to 1\. Install a newer version"):
        SqliteStore(path)


@pytest.mark.parametrize("options", [{}, {"n_bits": 16}, {"read_only": True}])
def test_a_file_of_an_unreleased_version_is_refused_and_left_alone(path, options):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item (number INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA application_id = {UNRELEASED_ID}")
        connection.execute("PRAGMA user_version = 5")
    content = path.read_bytes()
    with pytest.raises(StoreError, match=r"was made by an unreleased version of modalhash; train the engine again$"):
        SqliteStore(path, **options)
    assert path.read_bytes() == content


def test_empty_file_left_by_a_killed_process(path):
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        SqliteStore(path)
    with SqliteStore(path, n_bits=16) as store:
        assert store.count() == 0
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    connection.close()


def test_words_that_another_connection_has_added_since_a_search_are_no_damage(store, path):
    """From version 3.44 on, SQLite checks the index of words, too."""
    for n in range(30):
        store.add([record(f"first {n}", text=f"ball {n}")])
    assert len(store.search_text("7")) == 1
    with SqliteStore(path) as other:
        for n in range(100):
            other.add([record(f"second {n}", text=f"ball {n}")])
    assert store.damage() == []


def test_damage_is_an_error(path):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record(f"item {i}", code=b"\1\2", text="x" * 200) for i in range(2000)])
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="damaged"), SqliteStore(path) as store:  # at opening or at reading
        list(store.codes())
    for start in range(8192, len(content), 4096):
        content[start : start + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"), SqliteStore(path) as store:
        store.check()


def test_an_item_that_changed_on_the_disk_is_noticed(path):
    """One bit of a code or of a text, which SQLite's own check does not see."""
    with SqliteStore(path, n_bits=16) as store:
        store.add([record(f"item {i}", code=b"\xab\xcd", text=f"the text of {i}") for i in range(30)])
    whole = path.read_bytes()
    at = whole.index(b"the text of 7")
    for place, id in ((at, "item 7"), (whole.index(b"\xab\xcd"), None)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with SqliteStore(path) as store:
            (found,) = store.damage()
            assert "is not as it was written" in found
            assert id is None or f"'{id}' of 'text'" in found
            with pytest.raises(StoreError, match="is damaged: the item"):
                store.check()


def test_many_changed_items_are_counted(path):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record(f"item {i}") for i in range(30)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE item SET kind = 'learned'")
    connection.commit()
    connection.close()
    with SqliteStore(path) as store:
        assert [len(store.damage()), store.damage()[-1]] == [21, "and 10 more items"]


# -- removals that are forgotten


def test_old_removals_are_forgotten_and_whoever_is_behind_compares(path, monkeypatch):
    monkeypatch.setattr("modalhash.store.sqlite.store.KEPT_REMOVALS", 3)
    with SqliteStore(path, n_bits=16) as store:
        store.add([record(str(i)) for i in range(1, 13)])
        start = store.revision()
        for i in range(1, 9):
            before = store.revision()
            store.remove([("text", str(i))])
            assert store.removed(before, store.revision()).tolist() == [i]
        store.add([record("new")])
        store.remove([("text", "new")])
        assert sorted(store.removed(start, store.revision()).tolist()) == list(range(1, 9))
        assert store.revision() == Revision(13, 9)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM removed").fetchone()[0] <= 6


# -- read-only


def test_a_store_that_is_opened_read_only_is_never_changed(path):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a", text="a red boat")])
    before = path.read_bytes()
    with SqliteStore(path, read_only=True) as store:
        assert [store.count(), store.search_text("boat").tolist(), store.n_bits] == [1, [1], 16]
        store.check()
        for change in (lambda: store.add([record("b")]), lambda: store.remove([("text", "a")])):
            with pytest.raises(StoreError, match="opened read-only"):
                change()
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError, match="does not exist"):
        SqliteStore(path.with_name("nothing.db"), read_only=True)


def test_a_read_only_store_sees_what_others_add(path):
    with SqliteStore(path, n_bits=16) as writer, SqliteStore(path, read_only=True) as reader:
        writer.add([record("a")])
        assert reader.count() == 1


def cannot_open_but_immutable(monkeypatch):
    """A disk that is read-only: SQLite cannot create a file next to the store."""
    connect = sqlite3.connect

    def refuse(database, **options):
        if "immutable" not in str(database):
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(database, **options)

    monkeypatch.setattr(sqlite3, "connect", refuse)


def test_on_a_read_only_disk_the_store_is_opened_as_it_lies_there(path, monkeypatch):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a")])
    cannot_open_but_immutable(monkeypatch)
    with SqliteStore(path, read_only=True) as store:
        assert store.count() == 1
    with pytest.raises(StoreError, match="open it read-only: read_only=True"):
        SqliteStore(path)


def test_on_a_read_only_disk_a_store_that_was_not_closed_is_refused(path, monkeypatch):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a")])
        copy = path.with_name("copy.db")
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    cannot_open_but_immutable(monkeypatch)
    with pytest.raises(StoreError, match="was not closed by its last writer"):
        SqliteStore(copy, read_only=True)


# -- backup


def test_a_backup_is_the_store_of_one_moment(path, tmp_path):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record("a", text="a red boat")])
        store.backup(tmp_path / "copy.db")
        store.add([record("b")])
        with pytest.raises(FileExistsError):
            store.backup(tmp_path / "copy.db")
    with SqliteStore(tmp_path / "copy.db") as copy:
        copy.check()
        assert [record.id for record in copy.scan()] == ["a"]
        assert copy.search_text("boat").tolist() == [1]


# -- trouble while writing


def test_full_disk_loses_nothing(path):
    with SqliteStore(path, n_bits=16) as store:
        store.add([record(f"old {i}") for i in range(100)])
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(StoreFullError, match="make room and repeat"):
            store.add([record(f"new {i}", text="x" * 500) for i in range(1000)])
        assert store.count() == 100
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.add([record(f"new {i}", text="x" * 500) for i in range(1000)])
    with SqliteStore(path) as again:
        again.check()
        assert again.count() == 1100


def test_interrupt_leaves_nothing(store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("modalhash.store.sqlite.store.to_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add([record("a")])
    assert store.count() == 0
    store.add([record("a")])


def start(path, writer, first=0, size=50, batches=100_000):
    command = [sys.executable, str(HERE / "killed_writer.py"), str(path), writer, str(first), str(size), str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def overtake(monkeypatch, statement, act):
    """Let another process act before the given statement of the next connection."""

    class Overtaken(sqlite3.Connection):
        left = statement

        def execute(self, *arguments):
            self.left -= 1
            if self.left == -1:
                monkeypatch.undo()
                act()
            return super().execute(*arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Overtaken, **kwargs))


@pytest.mark.parametrize("statement", range(8))
def test_another_process_creates_the_store_between_two_looks(path, monkeypatch, statement):
    connect = sqlite3.connect
    overtake(monkeypatch, statement, lambda: SqliteStore(path, n_bits=16).close())
    with SqliteStore(path, n_bits=16) as store:
        assert store.n_bits == 16
        store.add([record("a")])
        assert sqlite3.connect is connect  # the other was there


@pytest.mark.slow
def test_two_processes_write_at_once(path):
    """Both also create the store; the second one finds it."""
    writers = [start(path, name, size=20, batches=15) for name in "ab"]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with SqliteStore(path) as store:
        store.check()
        assert store.count() == 2 * 20 * 15
        assert Counter(each.id[0] for each in store.scan()) == {"a": 300, "b": 300}


@pytest.mark.slow
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
        with SqliteStore(path.parent.with_name(f"copy-{attempt}") / path.name) as copy:
            copy.check()
        with SqliteStore(path) as store:
            found = Counter(int(each.id.split("-")[1]) for each in store.scan())
        assert set(found.values()) == {size}, "no batch is there in part"
        assert committed <= set(found), "what was committed is there"
        assert len(set(found) - committed) <= attempt + 1


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE item SET modality = 77 WHERE number = 1", lambda store: store.count()),
        ("UPDATE item SET labels = '[1' WHERE number = 1", lambda store: list(store.scan())),
        ("UPDATE item SET extra = 7 WHERE number = 1", lambda store: list(store.scan())),
        ("UPDATE item SET extra = 'x' WHERE number = 1", lambda store: store.get("a", modality="text")),
        ("UPDATE item SET extra = 'x' WHERE number = 1", lambda store: store.records([1])),
        ("UPDATE item SET refinement = zeroblob(999) WHERE number = 1", lambda store: list(store.refinements())),
        ("UPDATE sqlite_sequence SET seq = 'x' WHERE name = 'item'", lambda store: store.revision()),
        ("UPDATE meta SET value = '²' WHERE key = 'n_bits'", lambda store: None),
        ("UPDATE meta SET value = '0' WHERE key = 'n_bits'", lambda store: None),
        ("UPDATE meta SET value = 'x' WHERE key = 'words'", lambda store: None),
        ("DROP TABLE item_word; DROP TABLE meta", lambda store: None),
    ],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_rows_that_are_none_are_the_stores_error(tmp_path, change, read, read_only):
    path = tmp_path / "items.db"
    with SqliteStore(path, n_bits=8) as store:
        store.add([Record("a", "text", b"x", text="red", labels=("l",), extra={"title": "t"}, refinement=b"12")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(change)
        connection.commit()
    with pytest.raises(StoreError, match=r"items\.db"), SqliteStore(path, read_only=read_only) as store:
        read(store)
