"""`lakemark doctor` against the real stack: what is broken is named, and what it says mends it."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemark.kafka.brokers import Cluster
from lakemark.ops.doctor.facts_connector import connector_facts
from lakemark.settings.config import Config, load
from lakemark.state.stored_form import encode
from lakemark.state.tables import PipelineState, TableState
from stack.java import java_command
from stack.kafka import kafka_jars
from stack.lakemark_process import write_config
from stack.local import Database
from tests.kit.command_line import invoke
from tests.kit.servers import AT_NIGHT, EACH, on

pytestmark = pytest.mark.integration

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, note text)"
EVENTS = "CREATE TABLE events (id int, kind text)"
PARTED = (
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)",
    "CREATE VIEW totals AS SELECT count(*) FROM orders",
)
TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
PLACEHOLDER = "<columns that tell its rows apart>"


@pytest.fixture
def user(database: Database) -> Iterator[str]:
    """A role of lakemark's with SELECT on all tables and nothing else."""
    name = f"lakemark {database.name}"
    database.execute(f'CREATE ROLE "{name}" LOGIN')
    yield name
    database.execute(f'DROP OWNED BY "{name}"')
    database.execute(f'DROP ROLE "{name}"')


def doctor(file: Path) -> tuple[int, list[dict[str, str]]]:
    """Exit code, and what is not fine."""
    done = invoke("doctor", "-c", str(file), "-o", "json")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 20
    return done.exit_code, [f for f in found if f["verdict"] != "ok"]


def configured(database: Database, directory: Path, user: str) -> Path:
    postgres = database.stack.postgres
    url = f"postgresql://{user.replace(' ', '%20')}@{postgres.host}:{postgres.port}/{database.name}"
    return write_config(database, directory, {"database": {"url": url}})


def run_kafka_tool(command: str) -> None:
    """Run what a person would, with the tool's own class."""
    tool, *arguments = shlex.split(command)
    java = java_command(TOOLS[tool], *arguments, classpath=kafka_jars(), heap="128m")
    done = subprocess.run(java, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_broken_is_named_and_what_it_says_mends_it(
    database: Database, user: str, tmp_path: Path
):
    for statement in (ORDERS, EVENTS, *PARTED):
        database.execute(statement)
    database.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{user}"')
    topic = database.topic("orders")
    database.stack.kafka.create_topic(topic, config={"cleanup.policy": "compact"})
    database.start_connector()
    file = configured(database, tmp_path, user)

    code, found = doctor(file)

    assert code == 1
    by_check = {(f["check"], f["subject"]): f for f in found}
    signal = by_check.pop(("signal table", "public.debezium_signal"))
    key = by_check.pop(("key", "public.events"))
    identity = by_check.pop(("replica identity", "public.events"))
    compacted = by_check.pop(("change topic", topic))
    stats = by_check.pop(("pg_read_all_stats", user))
    assert by_check == {}
    assert {f["verdict"] for f in (signal, key, identity)} == {"error"}
    assert {f["verdict"] for f in (compacted, stats)} == {"warning"}
    assert "INSERT" in signal["mend"]
    assert "database refuses updates" in identity["reason"]

    database.execute(signal["mend"])
    database.execute(stats["mend"])
    database.execute(key["mend"].replace(PLACEHOLDER, "id"))
    run_kafka_tool(compacted["mend"])

    assert doctor(file) == (0, [])


def test_columns_that_the_lake_will_not_hold_as_they_are(database: Database, tmp_path: Path):
    database.execute(
        "CREATE TABLE odd (id int PRIMARY KEY, m int[][], i interval[], l pg_lsn, a int[],"
        " g int GENERATED ALWAYS AS (id * 2) STORED, z text, n name)"
    )
    database.execute(ORDERS)
    database.start_connector({"column.exclude.list": "public.odd.l"})
    _, found = doctor(write_config(database, tmp_path, {}))
    (columns,) = [f for f in found if f["check"] == "columns"]
    assert (columns["subject"], columns["verdict"]) == ("public.odd", "warning")
    for words in (
        "i (interval[]) is of a type that the connector leaves out",
        "g (int4) is generated",
        "z (text), n (name) are behind a generated column",
        "m (int4[][]) is an array of several dimensions",
        "n (name) is of a type that is null",
    ):
        assert words in columns["reason"]
    assert "pg_lsn" not in columns["reason"], "it is left out on purpose"


@on(*AT_NIGHT)
def test_output_topics_that_lakemark_did_not_make(any_database: Database, tmp_path: Path):
    database = any_database
    database.execute(ORDERS)
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    kafka, clean = database.stack.kafka, f"{database.name}.clean"
    kafka.create_topic(database.topic("orders"), partitions=3)
    orders, items = (f"{clean}.{database.identifier(table)}" for table in ("orders", "items"))
    kafka.create_topic(orders, config={"max.message.bytes": "2000"})
    database.start_connector()
    file = write_config(database, tmp_path, {"output": {"topic_prefix": clean}})

    code, found = doctor(file)

    assert code == 0
    partitions, size = found
    assert {(f["check"], f["subject"]) for f in found} == {("output topic", orders)}
    assert "has 1 partition, its change topic 3" in partitions["reason"]
    assert "takes records of 2,000 bytes" in size["reason"]
    for finding in found:
        run_kafka_tool(finding["mend"])
    assert doctor(file) == (0, [])
    assert items not in kafka.topics()


def test_a_paused_connector_and_a_table_that_is_not_published(database: Database, tmp_path: Path):
    database.execute(ORDERS)
    database.execute("INSERT INTO orders VALUES (1, 'a')")
    database.start_connector()
    database.stack.kafka.read(database.topic("orders"), count=1)
    file = write_config(database, tmp_path, {})
    database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    database.stack.connect.pause_connector(database.name)

    code, found = doctor(file)

    assert code == 1
    mends = {(f["check"], f["subject"]): f["mend"] for f in found}
    assert mends.keys() == {("connector", database.name), ("publication", "public.later")}
    assert mends["connector", database.name].endswith(f"/connectors/{database.name}/resume")
    database.execute(mends["publication", "public.later"])
    subprocess.run([*shlex.split(mends["connector", database.name]), "-s"], check=True, timeout=120)
    database.wait_streaming()
    assert doctor(file) == (0, [])


@on(*AT_NIGHT)
def test_events_that_are_gone_before_they_were_read(any_database: Database, tmp_path: Path):
    database = any_database
    database.execute(ORDERS)
    database.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    database.start_connector()
    topic, table = database.topic("orders"), database.identifier("orders")
    database.stack.kafka.read(topic, count=2)
    file = write_config(database, tmp_path, {})
    config = load(file)
    ends = ends_of(config, topic)
    state_at(config, table, topic, ends)
    assert doctor(file) == (0, [])

    state_at(config, table, topic, {partition: end + 5 for partition, end in ends.items()})
    code, (finding,) = doctor(file)
    assert (code, finding["check"], finding["subject"]) == (1, "place in the log", topic)
    assert finding["mend"] == f"lakemark recover --resnapshot {table}; lakemark run"


def ends_of(config: Config, topic: str) -> dict[int, int]:
    with Cluster(config) as cluster:
        found = cluster.end_offsets([topic])
    return {partition: end for (_, partition), end in found.items()}


def state_at(config: Config, table: str, topic: str, offsets: dict[int, int]) -> None:
    folder = Path(config.checkpoint) / "lakemark" / "state"
    folder.mkdir(parents=True, exist_ok=True)
    tables = {table: TableState(topics=[topic])}
    state = PipelineState(batch=7, offsets={topic: offsets}, tables=tables)
    (folder / "7.json").write_bytes(encode(state))


def test_the_worker_says_what_it_is(database: Database, tmp_path: Path):
    database.execute(ORDERS)
    database.start_connector()
    config = load(write_config(database, tmp_path, {}))
    facts = connector_facts(config).facts
    assert facts.runs
    with Cluster(config) as cluster:
        assert facts.cluster_id == cluster.brokers().cluster_id
    assert facts.skew_s is not None
    assert abs(facts.skew_s) < 5
    assert facts.version[0].isdigit()


@on(*EACH[1:])
def test_what_is_broken_in_mariadb_and_mysql_is_named_and_what_it_says_mends_it(
    any_database: Database, tmp_path: Path
):
    database, user = any_database, f"lakemark_{any_database.name}"
    for statement in (ORDERS, EVENTS, "INSERT INTO orders VALUES (1, 'a')"):
        database.execute(statement)
    database.execute(f"CREATE USER {user}")
    try:
        database.execute(f"GRANT SELECT ON {database.name}.* TO {user}")
        more = ", XA_RECOVER_ADMIN, REPLICATION SLAVE"
        rights = more if database.server.connector == "mysql" else ""
        database.execute(f"GRANT REPLICATION CLIENT{rights} ON *.* TO {user}")
        database.start_connector({"skipped.operations": "t"})
        database.stack.kafka.read(database.topic("orders"), count=1)
        url = database.dsn.replace("root@", f"{user}@")
        file = write_config(database, tmp_path, {"database": {"url": url}})

        code, found = doctor(file)

        by_check = {(f["check"], f["subject"]): f for f in found}
        key = by_check.pop(("key", database.identifier("events")))
        skipped = by_check.pop(("connector setting", "skipped.operations"))
        assert by_check == {}
        assert (code, key["verdict"], skipped["verdict"]) == (1, "error", "warning")
        database.execute(key["mend"].replace(PLACEHOLDER, "id"))
        database.start_connector()
        assert doctor(file) == (0, [])
    finally:
        database.execute(f"DROP USER {user}")


@on("mariadb-11.4")
def test_two_connectors_are_examined_and_planned_each_with_its_database(
    database: Database, any_database: Database, tmp_path: Path
):
    both = (database, any_database)
    for source in both:
        source.execute(ORDERS)
        source.execute("CREATE TABLE events (id int NOT NULL, kind text)")
        source.execute("INSERT INTO orders VALUES (1, 'a')")
        source.start_connector()
        source.stack.kafka.read(source.topic("orders"), count=1)
    entries = [
        {"connect": {"url": source.stack.connect.url, "connector": source.name},
         "database": {"url": source.dsn}}
        for source in both
    ]  # fmt: skip
    file = write_config(database, tmp_path, {"source": {"connectors": entries}, "database": None})

    code, found = doctor(file)

    assert code == 1
    keys = {(f["connector"], f["subject"]): f["mend"] for f in found if f["check"] == "key"}
    assert keys.keys() == {(source.name, source.identifier("events")) for source in both}
    for source in both:
        mend = keys[source.name, source.identifier("events")]
        source.execute(mend.replace(PLACEHOLDER, "id"))
    assert doctor(file) == (0, [])

    planned = json.loads(invoke("plan", "-c", str(file), "-o", "json").stdout)
    names = {source.topic(table) for source in both for table in ("orders", "events")}
    assert {table["name"] for table in planned["tables"]} == names
    assert {table["name"] for table in planned["tables"] if table["key"] == ["id"]} == names
    assert {scan["table"] for scan in planned["snapshot"]["tables"]} == names

    topic = any_database.topic("orders")
    config = load(file)
    ends = ends_of(config, topic)
    state_at(config, topic, topic, {partition: end + 5 for partition, end in ends.items()})
    code, (finding,) = doctor(file)
    assert (code, finding["check"], finding["subject"]) == (1, "place in the log", topic)
    assert finding["mend"] == f"lakemark recover --resnapshot {topic}; lakemark run"
