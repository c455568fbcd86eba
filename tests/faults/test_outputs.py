"""Output topics on real servers: no key goes back, whatever is killed, and all of it arrives."""

import json
import random
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lakemark.settings.config import load
from stack.local import ROOT, Database, Servers
from stack.processes import wait_for
from stack.shop_dialect import dialect_of
from tests.kit.broken import revive
from tests.kit.http_side import HttpSide
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.output_topics import OutputTopic, came_again, schema_of, settled
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.rendered_rows import assert_read_as_written
from tests.kit.running import STATE_S, Running
from tests.kit.servers import EACH, choose_pipelines, database_server, ends_servers, pipeline_of
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("streaming")]  # fmt: skip

OUTPUTS = ROOT / "examples" / "outputs"
RUN_S = 600.0
KILLS = 3
# One, nightly two, and as many where the connector's task had failed.
CONNECT_RESTARTS = 4 if NIGHTLY else 2
PLACEHOLDER = b"__debezium_unavailable_value"
# One writer, so the order of its numbers is that of the commits.
NEXT = "nextval('told')::int"
WRITES = (
    f"INSERT INTO docs VALUES (%s, {NEXT}, repeat('b', 2500)) ON CONFLICT (id) DO UPDATE SET n = {NEXT}",
    f"UPDATE docs SET n = {NEXT} WHERE id = %s",
    f"UPDATE docs SET n = {NEXT}, big = repeat(n::text, 600) WHERE id = %s",
    "DELETE FROM docs WHERE id = %s",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choose_pipelines(metafunc)


@pytest.fixture(scope="module")
def pipeline(
    stack: Servers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    with stack.fresh_database(server=database_server(stack, request.param)) as database:
        for table in ("docs", "emptied", "quiet"):
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, big text)")
            if request.param == "postgres":
                database.execute(f"ALTER TABLE {table} ALTER COLUMN big SET STORAGE EXTERNAL")
            rows = ((number, 0, str(number) * 2000) for number in range(1, 201))
            database.insert(table, ("id", "n", "big"), rows)
        with database.connect() as connection:
            dialect_of(database).every_type(connection)
        database.start_connector({"snapshot.mode": "no_data"})
        prefix = f"{database.name}.clean"
        sections = {**SNAPSHOT, "output": {"topic_prefix": prefix}}
        with Running(database, tmp_path_factory.mktemp("pipeline"), sections) as running:
            yield running


def arrived(pipeline: Running, table: str, *, placeholders: int = 0) -> OutputTopic:
    """The topic's rows are the table's, and the table's are the source's; nothing went back."""
    pipeline.wait_equal(table)
    return settled(pipeline, table, placeholders=placeholders)


@pipeline_of(*EACH)
def test_a_snapshot_and_its_events(pipeline: Running, snapshots: Snapshots):
    database, docs = pipeline.database, pipeline.database.identifier("docs")
    run = snapshots.start(docs, delay="20ms", chunk_rows=20)
    snapshots.wait_note(run, "STARTED")
    database.execute("UPDATE docs SET n = 1 WHERE id % 3 = 0")
    database.execute("DELETE FROM docs WHERE id % 7 = 0")
    database.insert("docs", ("id", "n", "big"), [(key, 2, "new") for key in range(300, 311)])
    snapshots.completed(run, deadline_s=RUN_S)
    database.execute("UPDATE docs SET n = 3 WHERE id % 2 = 0")
    topic = arrived(pipeline, docs)
    reads = [one for one in topic.seen if one.value and one.event["op"] == "r"]
    assert reads
    assert {one.event["source"]["snapshot"] for one in reads} == {"incremental"}
    deletes = [one for one in topic.seen if one.value and one.event["op"] == "d"]
    assert len(deletes) == len([one for one in topic.seen if one.value is None]) > 0


@pipeline_of(*EACH)
def test_events_come_as_they_are_with_headers_that_say_where_from(pipeline: Running):
    """Byte for byte, but for placeholders whose value is put in."""
    database = pipeline.database
    topic = arrived(pipeline, database.identifier("docs"))
    source, name = database.topic("docs"), load(pipeline.lakemark.config).name
    count = sum(database.stack.kafka.end_offsets(source).values())
    sent = {
        f"{source}-{r.partition()}-{r.offset()}": r
        for r in database.stack.kafka.read(source, count=count)
    }
    equal = Counter[str]()
    for one in topic.seen:
        at, position = one.headers.get("lakemark.source", b"").decode(), one.position.hex()
        read = one.value is not None and one.event["op"] == "r"
        assert bool(at) is not read
        end = "/r" if read else "/tombstone" if one.value is None else ""
        assert one.headers["lakemark.id"].decode() == f"{name}/{position}/{one.key.decode()}{end}"
        assert len(position) == 40
        if at:
            came = sent[at]
            assert one.key == came.key()
            if one.value is None:
                continue
            assert [pair for pair in came.headers() if one.headers.get(pair[0]) != pair[1]] == []
            if PLACEHOLDER not in came.value():
                assert one.value == came.value()
                equal[one.event["op"]] += 1
    assert min(equal[op] for op in "cud") > 5


@pipeline_of(*EACH)
def test_snapshot_rows_are_the_records_of_the_connectors_own_incremental_snapshot(
    pipeline: Running, snapshots: Snapshots
):
    """Of every type, byte for byte."""
    database, table = pipeline.database, pipeline.database.identifier("all_types")
    ((count,),) = database.execute("SELECT count(*) FROM all_types")
    database.execute(
        "INSERT INTO debezium_signal VALUES ('own', 'execute-snapshot', %s)",
        [json.dumps({"data-collections": [table], "type": "incremental"})],
    )
    pipeline.wait_captured("all_types")
    source = database.topic("all_types")
    theirs = {r.key(): r.value() for r in database.stack.kafka.read(source, count=count)}
    snapshots.completed(snapshots.start(table), deadline_s=RUN_S)
    topic = arrived(pipeline, table)
    ours = {one.key: one.value for one in topic.seen if one.value is not None}
    compared = assert_read_as_written(ours, theirs, schema_of(pipeline, table), database.modes)
    assert compared > 10 * count


def test_toast_values_key_changes_and_truncates(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    snapshots.completed(snapshots.start("public.emptied"), deadline_s=RUN_S)
    pipeline.wait_equal("public.emptied")
    database.execute("UPDATE emptied SET n = 5 WHERE id <= 50")
    database.execute("UPDATE emptied SET big = repeat('x', 3000) WHERE id = 3")
    database.execute("UPDATE emptied SET n = n + 1 WHERE id IN (3, 4)")
    topic = arrived(pipeline, "public.emptied")
    updates = [one for one in topic.seen if one.value and one.event["op"] == "u"]
    assert len(updates) == 53
    assert {len(one.event["after"]["big"]) > 1000 for one in updates} == {True}

    database.execute("UPDATE emptied SET id = id + 1000 WHERE id <= 10")
    arrived(pipeline, "public.emptied", placeholders=10)

    with database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO emptied VALUES (5000, 1, 'short')")
        connection.execute("TRUNCATE emptied")
        connection.execute("INSERT INTO emptied VALUES (20, 1, 'again'), (6000, 1, 'new')")
    topic = arrived(pipeline, "public.emptied")
    assert {json.loads(key)["id"] for key in topic.newest()} == {20, 6000}


@nightly
def test_rows_that_nobody_deleted_in_the_log_are_deleted_by_a_sweep(
    pipeline: Running, snapshots: Snapshots
):
    database = pipeline.database
    snapshots.completed(snapshots.start("public.quiet"), deadline_s=RUN_S)
    pipeline.wait_equal("public.quiet")
    hide = f"ALTER PUBLICATION {database.name} SET (publish = '%s')"
    database.execute(hide % "insert, update")
    database.execute("DELETE FROM quiet WHERE id % 5 = 0")
    database.execute(hide % "insert, update, delete, truncate")
    snapshots.completed(snapshots.start("public.quiet"), deadline_s=RUN_S)
    topic = arrived(pipeline, "public.quiet")
    assert len(topic.newest()) == 160


@nightly
def test_consumers_of_the_examples_end_with_the_rows(
    pipeline: Running, stack: Servers, tmp_path: Path
):
    """One that upserts is killed on its way; Spark reads the topic as it is."""
    database = pipeline.database
    pipeline.wait_equal("public.docs")
    topic = OutputTopic.of(pipeline, "public.docs")
    wanted = database.execute("SELECT id, n, big FROM docs ORDER BY id")
    page, kafka = "examples/outputs/README.md", stack.kafka.bootstrap
    names = {"localhost:9092": kafka, "shop.clean.public.orders": topic.name}
    shell = PageShell(tmp_path / "shell", here=OUTPUTS)
    with stack.fresh_database() as other:
        installed, created, upsert = lines(page, "upsert.py").splitlines()
        assert installed.startswith("pip install")
        theirs = {"-d reports": f"-d {shlex.quote(other.dsn)}", "customer int, total": "n int, big"}
        shell.run(with_names(created, theirs))
        upsert = with_names(upsert, {"host=localhost dbname=reports": other.dsn, **names})
        begun = shell.begin(upsert)
        wait_for(lambda: count_of(other, "applied"), STATE_S, "the first records to be applied")
        begun.kill()
        database.execute("UPDATE docs SET n = n + 100 WHERE id % 2 = 0")
        database.execute("DELETE FROM docs WHERE id % 10 = 1")
        wanted = database.execute("SELECT id, n, big FROM docs ORDER BY id")
        arrived(pipeline, "public.docs")
        assert "records applied" in shell.run(f"{upsert} --until-end")
        assert other.execute("SELECT id, n, big FROM orders ORDER BY id") == wanted
    shown = shell.run(with_names(lines(page, "kcat"), names)).splitlines()
    assert sorted(shown) == sorted(
        f"{one.partition}/{one.offset} {one.key.decode()} {(one.value or b'').decode()}"
        for one in topic.read()
    )
    columns = {"id INT, customer INT, total STRING": "id INT, n INT, big STRING"}
    shown = shell.run(with_names(lines(page, "spark-submit"), {**names, **columns})).splitlines()
    rows = [json.loads(line) for line in shown if line.startswith("{")]
    assert [(row["id"], row["n"], row["big"]) for row in rows] == wanted


def count_of(database: Database, table: str) -> int:
    """Rows of a table; 0 while it is not there."""
    ((there,),) = database.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0]) if there else 0


@ends_servers
def test_killed_while_it_writes(pipeline: Running, snapshots: Snapshots, stack: Servers):
    """lakemark and the connector, nightly all of Connect too, beside a snapshot and a workload."""
    database, rng = pipeline.database, random.Random(3)
    stop = threading.Event()
    database.execute("CREATE SEQUENCE told START 1000000")

    def write() -> None:
        dice = random.Random(4)
        with database.connect() as connection:
            while not stop.is_set():
                key = dice.randrange(400)
                connection.execute(dice.choice(WRITES), (key,))
                stop.wait(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        run = snapshots.start("public.docs", chunk_rows=10, delay="50ms")
        snapshots.wait_note(run, "STARTED")
        for kill in range(KILLS):
            enough = len(OutputTopic.of(pipeline, "public.docs").read()) + rng.randint(1, 200)
            wait_for(
                lambda enough=enough: len(OutputTopic.of(pipeline, "public.docs").read()) > enough,
                STATE_S,
                "more records in the output topic",
            )
            if NIGHTLY and kill == 1:  # what it had sent since its offset comes again
                stack.connect.kill()
                stack.connect.start()
                revive(pipeline)
            pipeline.lakemark.kill()
            if kill == 0:
                stack.connect.restart_connector(database.name)
                revive(pipeline)
            pipeline.lakemark.start()
        snapshots.completed(run, deadline_s=RUN_S)
    finally:
        stop.set()
        writer.join()
    topic = arrived(pipeline, "public.docs")
    assert topic.falls("n") == []
    ops = Counter(one.event["op"] for one in topic.seen if one.value)
    assert min(ops[op] for op in "cur") > 0
    # An event at the very position up to which a partition was written may come once more.
    again = [name for name in topic.repeated() if not name.endswith(("/r", "/tombstone"))]
    bound = CONNECT_RESTARTS * len(stack.kafka.end_offsets(topic.name))
    assert len(again) <= bound, f"{again} of {came_again(database, 'docs')} that came again"


@nightly
def test_without_connect_chunks_wait_for_a_later_event_in_every_partition(
    pipeline: Running, snapshots: Snapshots
):
    """As `source.connector_file` does it; the last of the tests that share the pipeline."""
    database, table = pipeline.database, "public.quiet"
    snapshots.completed(snapshots.start(table), deadline_s=RUN_S)
    config = pipeline.lakemark.config
    file = config.with_name("connector.json")
    file.write_text(json.dumps(database.config))
    sections = {**yaml.safe_load(config.read_text()), "source": {"connector_file": str(file)}}
    pipeline.lakemark.stop()
    config.write_text(yaml.safe_dump(sections))
    pipeline.lakemark.start()
    side = HttpSide(pipeline)
    run = snapshots.start(table, chunk_rows=1000)
    wait_for(
        lambda: (side.status()["snapshot_delay"] or {}).get("code") == "waits-for-connector",
        STATE_S,
        "the state to say what the chunk waits for",
    )
    assert snapshots.settled(run, table) == set()
    before = {(one.partition, one.offset) for one in OutputTopic.of(pipeline, table).read()}
    database.execute("UPDATE quiet SET n = n + 1 WHERE id % 2 = 0")
    snapshots.completed(run, deadline_s=RUN_S)
    assert side.status()["snapshot_delay"] is None
    topic = arrived(pipeline, table)
    new = [one for one in topic.seen if (one.partition, one.offset) not in before]
    after = Counter(one.event["op"] for one in new)
    ((odd,),) = database.execute("SELECT count(*) FROM quiet WHERE id % 2 = 1")
    assert after == {"u": len(topic.newest()) - odd, "r": odd}, "rows that an event is newer than"
