"""The store in PostgreSQL: the contract, connections that are cut, formats, roles, and what SQL sees."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import psycopg
import pytest
from store_contract import N_BITS, StoreContract, ids_of, record, texts

from modalhash.core.progress import StoppedError, should_stop
from modalhash.engine import refresh
from modalhash.index import HammingIndex
from modalhash.store import (
    Filter,
    PostgresStore,
    Record,
    Revision,
    SqliteStore,
    StoreError,
    StoreReplacedError,
    StoreUnavailableError,
    StoreUncertainError,
    drop_schema,
)
from modalhash.store.postgres import store as module, words
from modalhash.store.postgres.connection import Connections, shown_url
from postgres_server import PostgresServer, find_programs

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'modalhash'"


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def open_store(self, postgres, schema, monkeypatch):
        monkeypatch.setattr("modalhash.store.postgres.store._PAGE_ROWS", 35)  # so that reading takes several pages
        return lambda n_bits=None, timeout=60.0: PostgresStore(
            postgres.url, schema=schema, n_bits=n_bits, timeout=timeout
        )

    @pytest.fixture
    def block_writers(self, postgres, schema):
        @contextmanager
        def block():
            with psycopg.connect(postgres.url) as connection:
                connection.execute(f"SELECT * FROM {schema}.counter FOR UPDATE")
                yield

        return block


@pytest.fixture
def store(postgres, schema):
    with PostgresStore(postgres.url, schema=schema, n_bits=16) as opened:
        yield opened


# -- revisions are in the order of commits


def test_a_follower_misses_nothing_of_writers_that_overlap(postgres, schema, store):
    index, reached, stop = HammingIndex(16), None, threading.Event()
    names = count()

    def write():
        with PostgresStore(postgres.url, schema=schema) as own:
            for _ in range(15):
                own.add([record(f"{next(names):04}") for _ in range(3)])

    writers = [threading.Thread(target=write) for _ in range(3)]
    watcher = threading.Thread(target=lambda: ([one.join() for one in writers], stop.set()))
    for thread in (*writers, watcher):
        thread.start()
    while not stop.is_set():
        reached = refresh(index, store, reached)
    refresh(index, store, reached)
    watcher.join()
    assert index.dump()[0].tolist() == list(range(1, 136))


def test_old_removals_are_forgotten(store, monkeypatch):
    monkeypatch.setattr("modalhash.store.postgres.store.KEPT_REMOVALS", 5)
    store.add([record(f"{n:02}") for n in range(40)])
    index = HammingIndex(16)
    start = refresh(index, store)
    for n in range(0, 30, 2):
        store.remove(texts(f"{n:02}"))
    assert store.removed(start, store.revision()).tolist() == list(range(1, 31, 2))
    refresh(index, store, start)
    assert index.dump()[0].tolist() == store.matching().tolist()
    assert store._rows("SELECT count(*) FROM removed")[0][0] < 15


# -- connections that are cut


def test_a_read_survives_a_cut_connection_and_a_change_begins_anew(postgres, store):
    store.add([record("a")])
    postgres.execute(CUT)
    assert store.count() == 1
    postgres.execute(CUT)
    assert store.add([record("b")]).tolist() == [2], "the idle connection was cut, nothing was in progress"


@pytest.fixture
def stop():
    """Whether the request of this thread is over."""
    over = threading.Event()
    token = should_stop.set(over.is_set)
    yield over
    should_stop.reset(token)


def running(postgres):
    return postgres.execute(
        "SELECT query FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(50)' AND state = 'active'"
    )


def test_a_statement_whose_request_is_over_is_cancelled(postgres, store, stop, until):
    store.add([record("a")])

    def end_the_request():
        until(lambda: running(postgres))
        stop.set()

    other = threading.Thread(target=end_the_request)
    other.start()
    with pytest.raises(StoppedError, match="took too long"):
        store._rows("SELECT pg_sleep(50)")
    other.join()
    assert running(postgres) == []
    with pytest.raises(StoppedError):
        store.count()
    stop.clear()
    assert store.count() == 1


def test_the_server_ends_statements_of_a_process_that_does_not(postgres, schema, store):
    with PostgresStore(f"{postgres.url}&options=-c%20statement_timeout%3D40", schema=schema) as strict:
        for one in (store, strict):
            one.limit_statements(0.05)
        shown = [one._rows("SHOW statement_timeout")[0][0] for one in (store, strict)]
    assert shown == ["50ms", "40ms"]
    with pytest.raises(StoreUnavailableError, match="statement timeout"):
        store._rows("SELECT pg_sleep(50)")
    assert store.count() == 0


def test_a_change_that_was_cut_did_not_happen(postgres, store, monkeypatch):
    monkeypatch.setattr(module, "_count_labels", lambda *_: postgres.execute(CUT))  # in the middle of the transaction
    with pytest.raises(StoreUnavailableError, match="Nothing was changed; try again"):
        store.add([record("a")])
    monkeypatch.undo()
    assert [store.count(), store.revision()] == [0, Revision()]
    assert store.add([record("a")]).tolist() == [1]


class _LostCommit:
    """A connection whose COMMIT reaches the server, or not, and whose confirmation never comes back."""

    def __init__(self, connection, *, reached):
        self._connection, self._reached = connection, reached

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, sql, *values):
        if sql != "COMMIT":
            return self._connection.execute(sql, *values)
        if self._reached:
            self._connection.execute(sql)
        self._connection.close()
        raise psycopg.OperationalError("the connection is lost")


@pytest.mark.parametrize(
    ("reached", "answers", "error"),
    [(True, True, None), (False, True, StoreUnavailableError), (True, False, StoreUncertainError)],
)
def test_the_server_is_asked_about_a_confirmation_that_was_cut_off(store, monkeypatch, reached, answers, error):
    begin = Connections._begin
    monkeypatch.setattr(Connections, "_begin", lambda self: _LostCommit(begin(self), reached=reached))
    if not answers:
        monkeypatch.setattr("modalhash.store.postgres.connection.ASK_SECONDS", 0.0)
    if error is None:
        assert store.add([record("a")]).tolist() == [1]
    else:
        message = "unknown; check before you repeat it" if error is StoreUncertainError else "Nothing was changed"
        with pytest.raises(error, match=message) as raised:
            store.add([record("a")])
        assert type(raised.value) is error
    monkeypatch.undo()
    assert store.count() == int(reached)


@pytest.mark.slow  # a server of its own
@pytest.mark.parametrize("others", [False, True])
def test_a_commit_that_a_crash_of_the_server_lost_is_not_taken_for_done(monkeypatch, others):
    """After a crash, the server gives the number of the lost transaction to the next one, which may commit."""
    server = PostgresServer(*find_programs())
    with PostgresStore(server.url, schema="test", n_bits=16) as store:
        store.add([record("a")])

        class Crashes(_LostCommit):
            def execute(self, sql, *values):
                if sql == "COMMIT":
                    server.stop("immediate")
                    server.start()
                    if others:
                        server.execute("CREATE TABLE other (a int)")
                return super().execute(sql, *values)

        begin = Connections._begin
        monkeypatch.setattr(Connections, "_begin", lambda self: Crashes(begin(self), reached=False))
        with pytest.raises(StoreUncertainError if others else StoreUnavailableError) as raised:
            store.add([record("b")])
        assert type(raised.value) is (StoreUncertainError if others else StoreUnavailableError)
        monkeypatch.undo()
        assert [store.count(), store.add([record("b")]).tolist()] == [1, [2]]
    server.close()


def test_an_index_is_as_before_if_a_refresh_is_cut(store, monkeypatch):
    monkeypatch.setattr(module, "_PAGE_ROWS", 10)
    store.add([record(f"{n:02}") for n in range(35)])
    index, read_rows = HammingIndex(16), module.read_rows

    def cut(connection, sql, *more):
        if "number > 20" in sql:
            raise psycopg.OperationalError("cut")
        return read_rows(connection, sql, *more)

    monkeypatch.setattr(module, "read_rows", cut)
    with pytest.raises(StoreUnavailableError):
        refresh(index, store)
    assert len(index) == 0
    monkeypatch.setattr(module, "read_rows", read_rows)
    refresh(index, store)
    assert index.dump()[0].tolist() == list(range(1, 36))


def test_a_server_that_is_not_there(tmp_path):
    url = f"postgresql://me:s3cret@/items?host={tmp_path}"
    with pytest.raises(StoreUnavailableError, match=r"postgresql:///items \(schema mine\) cannot be reached") as raised:
        PostgresStore(url, schema="mine")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db:5433/items?sslmode=require", "postgresql://db:5433/items"),
        ("postgresql://me:s3%63ret@db/items", "postgresql://db/items"),
        ("postgresql:///items?user=me&password=s3cret", "postgresql:///items"),
        ("host=db password=s3cret", "postgresql://"),
    ],
)
def test_no_message_has_a_password(url, shown):
    assert shown_url(url) == shown
    connections = Connections(url, "mine", read_only=True)
    with pytest.raises(StoreError) as raised:
        connections._raise(psycopg.OperationalError(f"cannot connect to {url} with s3cret"))
    assert not re.search("s3cret|s3%63ret", str(raised.value))


# -- what is in the schema


def test_another_model_is_refused(postgres, schema):
    PostgresStore(postgres.url, schema=schema, n_bits=16).close()
    PostgresStore(postgres.url, schema=schema, model="a" * 64).close()
    PostgresStore(postgres.url, schema=schema, model="a" * 64, read_only=True).close()
    with pytest.raises(StoreError, match=r"holds codes of another model \(digest aaaaaaaaaaaa…, not bbbbbbbbbbbb…\)"):
        PostgresStore(postgres.url, schema=schema, model="b" * 64)


def test_schemas_that_are_no_stores(postgres, schema):
    with pytest.raises(StoreError, match="does not exist: it was dropped"):
        PostgresStore(postgres.url, schema=schema)
    postgres.execute(f"CREATE SCHEMA {schema}")
    with pytest.raises(StoreError, match="is not a store of modalhash"):
        PostgresStore(postgres.url, schema=schema, n_bits=16)
    for name in ("Big", "a-b", "", "x" * 64, "a; drop"):
        with pytest.raises(ValueError, match="lower-case letters"):
            PostgresStore(postgres.url, schema=name)


def test_newer_format_is_refused(postgres, schema, store):
    postgres.execute(f"UPDATE {schema}.meta SET value = '2' WHERE key = 'format'")
    with pytest.raises(StoreError, match=r"has format 2; this version reads up to 1\. Install a newer version"):
        PostgresStore(postgres.url, schema=schema)


def test_two_create_at_once(postgres, schema):
    opened = []
    threads = [
        threading.Thread(target=lambda: opened.append(PostgresStore(postgres.url, schema=schema, n_bits=16)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.count() for one in opened] == [0] * 4
    for one in opened:
        one.close()


def test_damage_is_found(postgres, schema, store):
    store.add([record(f"{n}", text="a red boat", labels=("sea",)) for n in range(5)])
    store.remove(texts("4"))
    assert store.damage() == []
    for change in (
        "code = 'xx'",
        "text = 'a blue boat'",
        "searched = 'car'",
        "folded_labels = '{}'",
        "kind = 'learned'",
    ):
        postgres.execute(f"CREATE TABLE {schema}.kept AS SELECT code, text, searched, folded_labels, kind FROM "
                         f"{schema}.item WHERE number = 2")  # fmt: skip
        postgres.execute(f"UPDATE {schema}.item SET {change} WHERE number = 2")
        assert store.damage() == ["the item '1' of 'text' is not as it was written"], change
        postgres.execute(
            f"UPDATE {schema}.item SET (code, text, searched, folded_labels, kind) = (SELECT * FROM {schema}.kept) "
            f"WHERE number = 2; DROP TABLE {schema}.kept"
        )
    postgres.execute(f"DELETE FROM {schema}.item WHERE number = 3")
    assert [text.partition(",")[0] for text in store.damage()] == [
        "3 items with 12 words",
        "the counts of labels are not those of the items",
    ]
    with pytest.raises(StoreError, match="is damaged"):
        store.check()


def test_other_fields_are_searched(postgres, schema, store):
    store.add([record("a", extra={"name": "herring", "title": "red"}), record("b")])
    assert [store.search_text("red").tolist(), store.search_text("herring").tolist()] == [[1], []]
    with PostgresStore(postgres.url, schema=schema, searched_fields=["name"]) as other:
        for one in (other, store):  # which had counted the words of the other field
            assert [one.search_text("red").tolist(), one.search_text("herring").tolist()] == [[], [1]]
        assert other.damage() == []


def test_words_are_counted_once_until_the_store_changes(store, monkeypatch):
    counted = []
    execute = psycopg.Connection.execute

    def counting(connection, query, values=None, **more):
        counted.extend(values[1] if query == words._COUNTS else ())
        return execute(connection, query, values, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", counting)
    store.add([record("a", text="a boat"), record("b", text="the sea")])
    assert [store.search_text(query).tolist() for query in ("boat", "boat sea", "boat")] == [[1], [1, 2], [1]]
    assert counted == ["boat", "sea"]
    store.remove(texts("a"))
    assert store.search_text("boat").tolist() == []
    assert counted == ["boat", "sea", "boat"]


def test_a_very_long_text(store):
    long = " ".join(f"word{n}" for n in range(100_000))
    store.add([record("long", text=long), record("b", text="a boat")])
    assert store.search_text("word7").tolist() == [1]
    assert store.get("long", modality="text").text == long
    assert store.damage() == []


def test_words_are_ordered_as_in_sqlite(store, tmp_path):
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(60)]
    batch = [record(f"{n:03}", text=" ".join(rng.choice(words, rng.integers(1, 12)))) for n in range(200)]
    store.add(batch)
    with SqliteStore(tmp_path / "items.db", n_bits=16) as sqlite:
        sqlite.add(batch)
        for query in ("w1", "w2 w3", "w4 w5 w6", "w7*", "w8 nosuch"):
            for where in (None, Filter.parse("id < 100")):
                found = store.search_text(query, where=where, limit=10).tolist()
                assert found == sqlite.search_text(query, where=where, limit=10).tolist(), query


def test_a_backup_is_of_one_moment(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PAGE_ROWS", 50)
    store.add([record(f"{n:02}", text="boat", labels=("sea", n), extra={"n": n}) for n in range(30)])
    before, page = list(store.scan()), module._page

    def changed(*arguments, **options):  # another process writes between two pages
        if store.count() < 33:
            store.add([record(f"new-{store.revision().items}")])
            store.remove(texts(f"{29 - store.revision().removals:02}"))
        return page(*arguments, **options)

    monkeypatch.setattr(module, "_page", changed)
    store.backup(tmp_path / "copy.db")
    assert store.revision() != Revision(30, 0)
    with SqliteStore(tmp_path / "copy.db") as copy:
        assert list(copy.scan()) == before
        assert copy.damage() == []


def test_after_a_handover_changes_are_refused_on_every_machine(postgres, schema, store):
    store.add([Record("a", "text", b"ab")])
    with PostgresStore(postgres.url, schema=schema) as elsewhere:
        with store.lock_writes() as replace_by:
            replace_by(None)
        for change in (lambda: elsewhere.add([Record("b", "text", b"ab")]), lambda: elsewhere.remove([("text", "a")])):
            with pytest.raises(StoreReplacedError, match="a retrained engine has replaced it"):
                change()
        assert [each.id for each in elsewhere.scan()] == ["a"]


def test_a_handover_while_writers_wait(postgres, schema, store):
    """They hold locks on the table, for which a change of the table itself would wait while they wait for it."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%counter FOR UPDATE'"
    outcomes = []

    def write(number):
        try:
            store.add([Record(f"late-{number}", "text", b"ab")])
        except StoreError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    with store.lock_writes() as replace_by:
        for thread in threads:
            thread.start()
        while len(postgres.execute(waiting)) < len(threads):
            pass
        replace_by(None)
    for thread in threads:
        thread.join()
    assert outcomes == [StoreReplacedError] * 3


def test_a_schema_in_use_is_not_dropped(postgres, schema, store):
    store.count()
    assert drop_schema(postgres.url, schema) is False
    store.close()
    assert drop_schema(postgres.url, schema, only_look=True) is True
    assert drop_schema(postgres.url, schema) is True
    assert drop_schema(postgres.url, schema) is None


# -- what SQL sees, and who may do what: the statements of docs/postgres.md


def sql_of_page(heading):
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sql\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def test_codes_are_bits_for_sql(postgres, schema):
    with PostgresStore(postgres.url, schema=schema, n_bits=12) as store:
        store.add([Record("a", "text", b"\xf0\xf0", labels=("sea",)), Record("b", "image", b"\x00\x10")])
    assert postgres.execute(f"SELECT id, modality, code::text, labels FROM {schema}.items ORDER BY number") == [
        ("a", "text", "111100001111", ["sea"]),
        ("b", "image", "000000000001", []),
    ]
    plain, with_pgvector = sql_of_page("SQL on codes")
    values = {"modalhash_0123456789abcdef": schema, "B'…'": "B'111100001110'"}
    for statement in (plain, with_pgvector):
        for name, value in values.items():
            statement = statement.replace(name, value)
        try:
            rows = postgres.execute(statement)
        except psycopg.errors.FeatureNotSupported:
            continue  # this server has no pgvector
        assert [(row[0], int(row[-1])) for row in rows] == [("a", 1), ("b", 8)]


def test_roles_of_the_page(postgres, schema):
    """The owner creates, the writer adds and removes and creates nothing, the reader reads."""
    owner, writer, reader = (f"modalhash_{name}" for name in ("owner", "writer", "reader"))
    postgres.execute("".join(sql_of_page("Roles")).replace("DATABASE items", "DATABASE postgres"))
    try:
        PostgresStore(postgres.url_of(owner), schema=schema, n_bits=N_BITS).close()
        with PostgresStore(postgres.url_of(writer), schema=schema, model="a") as store:
            store.add([record("a", text="a boat"), record("b")])
            store.remove(texts("b"))
            assert store.search_text("boat").tolist() == [1]
        with pytest.raises(StoreError, match="the role may not do this"):
            PostgresStore(postgres.url_of(writer), schema=f"{schema}_2", n_bits=N_BITS)
        with pytest.raises(StoreError, match="the role may not do this"):
            drop_schema(postgres.url_of(writer), schema)
        with PostgresStore(postgres.url_of(reader), schema=schema, read_only=True) as store:
            assert ids_of(store) == ["a"]
            assert store.matching(Filter.parse("year = 3 or id = a")).tolist() == [1]
            with pytest.raises(StoreError, match="read-only"):
                store.add([record("c")])
        with (
            PostgresStore(postgres.url_of(reader), schema=schema) as store,
            pytest.raises(StoreError, match="the role may not do this"),
        ):
            store.add([record("c")])
    finally:
        postgres.execute(f"DROP SCHEMA {schema} CASCADE")
        for role in (writer, reader, owner):
            postgres.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
