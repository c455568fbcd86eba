"""A chunk as one task reads and writes it: PostgreSQL to parts in Kafka, and what can go wrong."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition

from lakemark.connectors.postgres import chunk_reader, postgres_session
from lakemark.connectors.postgres.chunk_reader import PostgresReader
from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.connectors.postgres.postgres_session import Session
from lakemark.kafka import brokers
from lakemark.model import change_batch
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition, KeyRange, halves
from lakemark.settings.config import Config
from lakemark.snapshot import chunk_task, chunks
from lakemark.snapshot.chunk_task import ReadSettings, run_chunk
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.source.changed_keys import shard_of
from stack.local import CONNECTOR, Database, Servers
from tests.kit.servers import servers

pytestmark = pytest.mark.integration

NAME = "chunks"
TABLE = "public.t"


@pytest.fixture(scope="module")
def brokers_and_database() -> Iterator[Servers]:
    with servers("chunks", ("kafka", "postgres")) as started:
        ours = Config.model_validate(
            {
                "name": NAME,
                "kafka": {"bootstrap_servers": started.kafka.bootstrap},
                "source": {"connector_file": str(CONNECTOR)},
                "lake": {"path": "/nowhere/lake"},
                "checkpoint": "/nowhere/checkpoint",
            }
        )
        with brokers.Cluster(ours) as cluster:
            cluster.ensure_topics()
        yield started


@pytest.fixture
def source(brokers_and_database: Servers) -> Iterator[Database]:
    with brokers_and_database.fresh_database() as fresh:
        yield fresh
        chunk_task._kept.drop()


def session_kept() -> Session | None:
    reader = chunk_task._kept.reader
    return reader.kept.session if isinstance(reader, PostgresReader) else None


def config(source: Database, tmp_path, **sections) -> Config:
    given = {
        "name": NAME,
        "kafka": {"bootstrap_servers": source.stack.kafka.bootstrap, "timeout": "10s"},
        "source": {"connector_file": str(CONNECTOR)},
        "database": {"url": source.dsn},
        "lake": {"path": "lake"},
        "checkpoint": "checkpoint",
    }
    return Config.model_validate({**given, **sections}, context={"base": tmp_path})


@pytest.fixture
def settings(source: Database, tmp_path) -> ReadSettings:
    return ReadSettings(config(source, tmp_path), HandlingModes(), {})


@pytest.fixture
def spec(source: Database):
    """Makes specs, of a run that no other test has."""

    def make(**changed) -> ChunkSpec:
        given = {"run": source.name, "table": TABLE, "chunk": 3, "attempt": 17, "shards": 4}
        return ChunkSpec(**{**given, **changed})

    return make


@pytest.fixture
def written(source: Database):
    """Gives the records of the parts of an attempt, by shard and part."""
    bootstrap = source.stack.kafka.bootstrap
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "parts"})
    topic = f"{NAME}.chunks"
    found = {}

    def read(attempt: int = 17) -> dict[tuple[int, int], list[dict]]:
        ends = source.stack.kafka.end_offsets(topic)
        places = [TopicPartition(topic, p, 0) for p, end in ends.items() if end]
        consumer.assign(places)
        left = sum(ends.values())
        while left:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            header = json.loads(message.key())
            if header["run"] == source.name:
                packet = change_batch.decode(message.value())
                parts = found.setdefault(header["attempt"], {})
                parts[header["shard"], header["part"]] = packet.to_pylist()
            left -= 1
        return found.get(attempt, {})

    yield read
    consumer.close()


def good(result: ChunkResult) -> ChunkResult:
    assert result.error is None
    return result


def test_a_chunk_s_rows_are_in_the_parts_that_the_result_counts(
    source: Database, settings, spec, written
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(5, 2))")
    source.execute("INSERT INTO t SELECT i, 'v' || i, i FROM generate_series(1, 500) i")
    source.execute("INSERT INTO t VALUES (501, 'v', 'NaN')")
    ((before,),) = source.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint")

    result = good(run_chunk(spec(span=KeyRange(("100",), None)), settings))

    found = written()
    assert result.attempt == 17
    assert (result.rows, result.absent, result.bad_rows) == (401, 0, 1)
    assert result.bad == (("[501]", "wrong-type"),)
    assert {shard: 1 for shard, _ in found} == result.parts
    rows = [row for part in found.values() for row in part]
    assert sorted(row["row"]["id"] for row in rows) == list(range(101, 502))
    assert [row["row"]["id"] for row in rows if row["row"]["n"] is None] == [501]
    assert all(shard_of(TABLE, row["key"], 4) == s for (s, _), p in found.items() for row in p)
    ((after,),) = source.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint")
    (source_ts,) = {row["source_ts"] for row in rows}
    assert before <= source_ts <= after
    assert result.fingerprint == settings.source.schemas([TABLE])[TABLE].fingerprint()
    assert result.fingerprint == settings.source.cut(TABLE, 100).fingerprint
    assert result.proof.server.timeline == 1
    assert result.bytes > 400
    assert 0 < result.read_seconds < result.seconds


def test_the_cut_of_a_table_is_read_chunk_by_chunk(source: Database, settings, spec, written):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t SELECT generate_series(1, 25)")
    cut = settings.source.cut(TABLE, 10)
    assert len(cut.spans) == 3
    for number, span in enumerate(cut.spans):
        good(run_chunk(spec(chunk=number, attempt=number, span=span), settings))
    ids = [
        row["row"]["id"] for number in range(3) for part in written(number).values() for row in part
    ]
    assert sorted(ids) == list(range(1, 26))
    source.execute("ALTER TABLE t ADD v text")
    assert settings.source.schemas([TABLE])[TABLE].fingerprint() != cut.fingerprint
    few = settings.source.cut(TABLE, 10, condition=Condition("id < %s", (5,)))
    assert few.spans == (KeyRange(),)


def test_an_empty_range_is_one_empty_part(source: Database, settings, spec, written):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    result = good(run_chunk(spec(), settings))
    assert (result.rows, result.parts) == (0, {0: 1})
    assert written() == {(0, 0): []}


KEYS = {
    "integer": ("id bigint PRIMARY KEY", ["1", "2"], ["3", "-4"]),
    "char": ("id char(5) PRIMARY KEY", ["'ab'", "'ü b'"], ["'c'", "''"]),
    "numeric": ("id numeric(10, 2) PRIMARY KEY", ["1.5", "-2"], ["3", "0.01"]),
    "any numeric": ("id numeric PRIMARY KEY", ["1.50", "1e30"], ["3.0", "0.001"]),
    "uuid": ("id uuid PRIMARY KEY", ["md5('1')::uuid"], ["md5('2')::uuid"]),
    "text": ("id text PRIMARY KEY", ["'a''\"\\'", "'Ü'"], ["''", "'%s'", "'ü'"]),
    "bytea": ("id bytea PRIMARY KEY", ["'\\x00ff'"], ["'\\x'", "'\\x01'"]),
    "date": ("id date PRIMARY KEY", ["'1969-12-31'"], ["'2024-02-29'"]),
    "timestamp": ("id timestamp PRIMARY KEY", ["'1969-12-31 01:02:03.000004'"], ["'2024-02-29'"]),
    "timestamptz": ("id timestamptz PRIMARY KEY", ["'2024-02-29 12:00+05'"], ["'2024-02-29'"]),
    "time": ("id time PRIMARY KEY", ["'01:02:03.000004'", "'24:00'"], ["'0:00'", "'12:00:00.5'"]),
    "float": ("id float8 PRIMARY KEY", ["0.1", "-0.0"], ["1e300"]),
    "enum": ("id mood PRIMARY KEY", ["'sad'"], ["'ok'"]),
    "domain": ("id label PRIMARY KEY", ["'a'"], ["'b'"]),
    "two": ("id int, b char(3), PRIMARY KEY (b, id)", ["1, 'a'", "2, 'b'"], ["1, 'b'", "2, 'a'"]),
}


@pytest.mark.parametrize(("columns", "there", "gone"), KEYS.values(), ids=KEYS.keys())
def test_keys_of_a_list_that_the_table_lacks_become_deletes(
    source: Database, settings, spec, written, columns, there, gone
):
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    source.execute("CREATE DOMAIN label AS varchar(9)")
    source.execute(f"CREATE TABLE t (pad text, {columns}, v int)")
    names = "id, b" if " b " in columns else "id"
    for values in (*there, *gone):
        source.execute(f"INSERT INTO t ({names}) VALUES ({values.replace('%', '%%')})", [])
    good(run_chunk(spec(attempt=1), settings))
    everything = {r["key"]: r["row"] for p in written(1).values() for r in p}
    for values in gone:
        source.execute(
            f"DELETE FROM t WHERE ({names}) = ROW({values.replace('%', '%%')})".replace(
                "(id) = ROW", "id = "
            ),
            [],
        )
    schema = settings.source.schemas([TABLE])[TABLE]
    columns_of = [schema.column(name) for name in schema.key]
    texts = tuple(key_texts(list(everything), columns_of))

    result = good(run_chunk(spec(attempt=2, keys=(*texts, *texts)), settings))

    assert (result.rows, result.absent) == (len(there), len(gone))
    records = [row for part in written(2).values() for row in part]
    found = {r["key"]: r["action"] for r in records}
    assert found.keys() == everything.keys()
    for record in records:
        row = everything[record["key"]]
        if record["action"] == "delete":
            assert record["row"] == {name: row[name] for name in schema.key}
            assert record["op"] == "d"
        else:
            assert record["row"] == row
    assert list(found.values()).count("delete") == len(gone)


def test_what_a_condition_leaves_out_is_not_absent(source: Database, settings, spec, written):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric(5, 2))")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 'NaN')")
    keys = (("1",), ("2",), ("3",), ("4",), ("9",))
    condition = Condition("n < %s", (2,))
    result = good(
        run_chunk(spec(keys=keys, condition=condition, span=KeyRange(None, ("8",))), settings)
    )
    assert (result.rows, result.absent) == (1, 1)
    bad = good(run_chunk(spec(keys=keys, attempt=18), settings))
    assert (bad.rows, bad.bad_rows, bad.absent) == (3, 1, 2)


def test_keys_that_the_connector_rounds_are_no_reason_to_delete(
    source: Database, settings, spec, written
):
    source.execute("CREATE TABLE t (id timestamp PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES ('2024-01-01 00:00:00.123456')")
    rounded = ReadSettings(
        settings.config, HandlingModes.from_connector({"time.precision.mode": "connect"}), {}
    )
    asked = spec(keys=(("2024-01-01 00:00:00.123",),))
    assert run_chunk(asked, rounded).error.code == "key-type"
    assert good(run_chunk(asked, settings)).absent == 1
    unreadable = run_chunk(spec(keys=(("not a time",),)), settings).error
    assert unreadable.code == "key-unreadable"
    assert "not a time" not in repr(unreadable)


def test_generated_columns_are_in_no_chunk_as_they_are_in_no_event(
    source: Database, settings, spec, written
):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v int)"
    )
    source.execute("INSERT INTO t (id, v) VALUES (1, 3)")
    good(run_chunk(spec(shards=1), settings))
    assert [r["row"] for r in written()[0, 0]] == [{"id": 1, "v": 3}]


def test_a_large_row_is_a_part_of_its_own_and_one_too_large_is_refused(
    source: Database, settings, spec, written, tmp_path
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute(  # 6 MB each, of which zstd leaves half
        "INSERT INTO t SELECT i, string_agg(md5(i::text || part), '')"
        " FROM generate_series(1, 3) i, generate_series(1, 187500) part GROUP BY i"
    )
    result = good(run_chunk(spec(shards=1), settings))
    assert result.parts == {0: 3}
    assert {place: len(part) for place, part in written().items()} == {
        (0, 0): 1,
        (0, 1): 1,
        (0, 2): 1,
    }
    small = config(source, tmp_path, dead_letters={"max_record_bytes": "2MB"})
    error = run_chunk(spec(attempt=18), ReadSettings(small, HandlingModes(), {})).error
    assert (error.code, error.retried) == ("row-too-large", False)
    assert TABLE in error.message
    source.execute(
        "INSERT INTO t SELECT 4, string_agg(md5(i::text), '') FROM generate_series(1, 800000) i"
    )
    asked = spec(attempt=19, span=KeyRange(("3",), None))
    assert run_chunk(asked, settings).error.code == "row-too-large"
    generous = config(source, tmp_path, dead_letters={"max_record_bytes": "90MB"})
    error = run_chunk(asked, ReadSettings(generous, HandlingModes(), {})).error
    assert error.code == "row-too-large"  # the topic says so
    assert good(run_chunk(spec(attempt=20, span=KeyRange(None, ("1",))), settings)).rows == 1


def test_a_range_that_is_too_large_or_too_slow_comes_back_as_its_halves(
    source: Database, settings, spec, written, monkeypatch
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 8) i")
    read = chunk_reader.read_chunk
    monkeypatch.setattr(
        chunk_reader, "read_chunk", lambda table, **given: read(table, **given, max_bytes=4_100)
    )
    error = run_chunk(spec(), settings).error
    assert (error.code, error.retried) == ("chunk-too-large", True)
    assert list(error.halves) == halves(KeyRange(), ("4",))
    assert good(run_chunk(spec(attempt=18, span=error.halves[0]), settings)).rows == 4
    monkeypatch.undo()

    slow = ReadSettings(settings.config, settings.modes, {}, statement_timeout=timedelta(seconds=3))
    naps = Condition("v <> '' OR pg_sleep(30) IS NOT NULL")
    assert good(run_chunk(spec(attempt=20, condition=naps), slow)).rows == 8


def test_a_filter_that_takes_too_long_does_not_keep_its_chunk_from_being_halved(
    source: Database, settings, spec, written, monkeypatch
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t SELECT generate_series(1, 4)")
    slow = ReadSettings(settings.config, settings.modes, {}, statement_timeout=timedelta(seconds=2))
    every = Condition("pg_sleep(0.7) IS NOT NULL")  # 2.8 s, and the middle takes longer
    first = run_chunk(spec(condition=every), slow).error
    assert (first.code, first.retried) == ("statement-timeout", True)
    assert list(first.halves) == halves(KeyRange(), ("2",))
    found, attempt, waiting = [], 100, list(first.halves)
    while waiting:
        attempt, span = attempt + 1, waiting.pop()
        result = run_chunk(spec(attempt=attempt, span=span, condition=every), slow)
        if result.error is None:
            found += [row["row"]["id"] for part in written(attempt).values() for row in part]
        else:
            assert len(result.error.halves) == 2
            waiting += result.error.halves
    assert sorted(found) == [1, 2, 3, 4]

    one = Condition("pg_sleep(CASE WHEN id = 2 THEN 30 ELSE 0 END) IS NOT NULL")
    late = run_chunk(spec(attempt=200, condition=one), slow).error
    assert list(late.halves) == halves(KeyRange(), ("2",))
    alone = spec(attempt=201, span=KeyRange(("1",), ("2",)), condition=one)
    assert run_chunk(alone, slow).error.halves == ()

    # A chunk that is too large is halved by the rows that its filter leaves, where that is quick.
    source.execute("INSERT INTO t SELECT generate_series(5, 16)")
    read = chunk_reader.read_chunk
    monkeypatch.setattr(
        chunk_reader, "read_chunk", lambda table, **given: read(table, **given, max_bytes=9)
    )
    few = Condition("id > %s", (12,))
    large = run_chunk(spec(attempt=202, condition=few), slow).error
    assert (large.code, list(large.halves)) == ("chunk-too-large", halves(KeyRange(), ("14",)))
    look = chunk_reader.middle

    def middle(table, span, *, condition):
        if condition is not None:
            table.session.execute("SELECT pg_sleep(30)")
        return look(table, span, condition=condition)

    monkeypatch.setattr(chunk_reader, "middle", middle)
    large = run_chunk(spec(attempt=203, condition=few), slow).error
    assert (large.code, list(large.halves)) == ("chunk-too-large", halves(KeyRange(), ("8",)))


def test_errors_are_results_and_the_next_chunk_is_read(
    source: Database, settings, spec, written, tmp_path
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert run_chunk(spec(table="public.nope"), settings).error.code == "table-gone"
    assert run_chunk(spec(), settings, again=True).error.code == chunks.RETRIED
    broken = spec(condition=Condition("1 / (id - id) = %s"))  # a parameter is missing
    failed = run_chunk(broken, settings).error
    assert failed.code in ("internal-error", "query-failed")
    assert "%s" not in failed.trace
    away = config(source, tmp_path, kafka={"bootstrap_servers": "127.0.0.1:1", "timeout": "1s"})
    error = run_chunk(spec(attempt=18), ReadSettings(away, HandlingModes(), {})).error
    assert (error.code, error.retried) == ("kafka-unavailable", True)
    down = config(source, tmp_path, database={"url": "postgresql://postgres@127.0.0.1:1/x"})
    error = run_chunk(spec(attempt=19), ReadSettings(down, HandlingModes(), {})).error
    assert (error.code, error.retried) == ("database-unavailable", True)
    assert written(18) == {}
    assert good(run_chunk(spec(attempt=20), settings)).parts == {0: 1}


def test_a_worker_keeps_its_session_and_producer_until_they_break(
    source: Database, settings, spec, written
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    good(run_chunk(spec(attempt=1), settings))
    session, producer = session_kept(), chunk_task._kept.producer
    good(run_chunk(spec(attempt=2), settings))
    assert (session_kept(), chunk_task._kept.producer) == (session, producer)
    ours = "application_name = 'lakemark snapshot' AND datname = current_database()"
    assert len(source.execute(f"SELECT 1 FROM pg_stat_activity WHERE {ours}")) == 1
    source.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    good(run_chunk(spec(attempt=3), settings))
    assert session_kept() is not session
    run_chunk(spec(table="public.nope"), settings)
    assert session_kept() is None
    deadline = time.monotonic() + 10
    while source.execute(f"SELECT 1 FROM pg_stat_activity WHERE {ours}"):
        assert time.monotonic() < deadline


def test_a_lock_that_somebody_holds_is_waited_for_and_then_told(
    source: Database, settings, spec, monkeypatch
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    impatient = partial(postgres_session.connect, lock_timeout=timedelta(milliseconds=200))
    monkeypatch.setattr(postgres_session, "connect", impatient)
    found = []
    with source.connect() as other, other.transaction():
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: found.append(run_chunk(spec(), settings)))
        thread.start()
        thread.join(30)
    assert found[0].error.code == "table-locked"
    assert found[0].error.retried


def test_a_table_whose_changes_the_log_does_not_bring_is_refused(source: Database, settings):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    source.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50)")
    source.execute("CREATE PUBLICATION ours FOR TABLE t, p")

    def reasons(table: str = TABLE, **more: str) -> list[str]:
        connector = {"plugin.name": "pgoutput", "publication.name": "ours"}
        connector |= {name.replace("__", "."): value for name, value in more.items()}
        ours = ReadSettings(settings.config, settings.modes, connector)
        found = ours.source.reasons_against(table)
        return [reason.code for reason in found]

    assert reasons() == []
    assert reasons(publication__name="other") == ["not-published"]
    assert reasons(publication__name="other", plugin__name="decoderbufs") == []
    assert (reasons("public.p"), reasons("public.p1")) == (["not-published"], [])
    source.execute("ALTER PUBLICATION ours SET (publish_via_partition_root = true)")
    assert (reasons("public.p"), reasons("public.p1")) == ([], ["not-published"])
    source.execute("ALTER PUBLICATION ours SET TABLE t (id, a) WHERE (id > 5)")
    assert reasons() == ["publication-filters-rows", "publication-hides-columns"]
    source.execute("ALTER PUBLICATION ours SET (publish = 'insert, delete')")
    assert reasons() == [
        "publication-hides-changes", "publication-filters-rows", "publication-hides-columns",
    ]  # fmt: skip
    source.execute("ALTER PUBLICATION ours SET (publish = 'insert, update, delete')")
    assert reasons(column__exclude__list="public.t.b") == ["publication-filters-rows"]
    masked = {"column.mask.with.3.chars": "public.t.a"}
    assert reasons(**masked)[0] == "column-masked"


def test_each_chunk_asks_whether_the_log_has_the_table_s_changes(source: Database, settings, spec):
    """A run may have been begun before the publication was changed, or asked for by the stream."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    source.execute("CREATE PUBLICATION ours FOR TABLE t")
    told = {"plugin.name": "pgoutput", "publication.name": "ours"}
    settings = replace(settings, connector=told)
    good(run_chunk(spec(), settings))
    source.execute("ALTER PUBLICATION ours SET TABLE other")
    refused = run_chunk(spec(attempt=18), settings).error
    assert refused is not None
    assert (refused.code, refused.retried) == ("not-published", False)
    assert "ALTER PUBLICATION ours ADD TABLE" in refused.hint
    masked = replace(settings, connector={"column.mask.with.4.chars": "public.t.id"})
    refused = run_chunk(spec(attempt=19), masked).error
    assert refused is not None
    assert not refused.retried
