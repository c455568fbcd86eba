"""The story of one row, on real servers: every line is checked against what was done to the row.

A line that says which version of the table has something is checked with that version itself.
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from deltalake import DeltaTable

from stack.database import Database
from stack.processes import wait_for
from tests.kit.going_on import going_on
from tests.kit.nightly import nightly
from tests.kit.running import STATE_S, Running, header
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EACH = pytest.mark.parametrize(
    ("any_database", "engine"),
    [
        ("postgres", "task-merge"),
        pytest.param("mariadb-11.4", "deletion-vectors", marks=nightly),
        pytest.param("postgres", "deletion-vectors", marks=nightly),
        pytest.param("mysql-9.7", "task-merge", marks=nightly),
    ],
    indirect=["any_database"],
)
Line = dict[str, Any]
BUSY = {"busy-1", "busy-2", "busy-3"}


class Story:
    """A pipeline with a table, and the command that tells the story of one of its rows."""

    def __init__(self, running: Running, table: str) -> None:
        self.running = running
        self.database = running.database
        self.name = running.database.identifier(table)
        self.topic = running.database.topic(table)
        self.kafka = running.database.stack.kafka

    def tell(
        self, key: Any, *options: str, code: int = 0, table: str = "", raises: str = ""
    ) -> dict[str, Any]:
        """What the command says of a row, as JSON; it must end with this code."""
        name = table or self.name
        arguments = ("trace", name, "--key", json.dumps(key), "-o", "json", *options)
        done = self.running.lakemark.answer(*arguments)
        assert done.returncode == code, done.stderr + done.stdout
        if raises:
            assert raises in done.stderr
            return {}
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def shown(self, key: Any, *options: str) -> str:
        return self.running.lakemark.command("trace", self.name, "--key", json.dumps(key), *options)

    def records(self) -> list[Message]:
        count = sum(self.kafka.end_offsets(self.topic).values())
        return self.kafka.read(self.topic, count=count)

    def put(self, message: Message, value: bytes | None) -> int:
        """Send a record again, or what is left of it, behind all others; its offset."""
        (end,) = self.kafka.end_offsets(self.topic).values()
        producer = self.kafka.producer()
        producer.produce(
            self.topic, key=message.key(), value=value, headers=message.headers(), partition=0
        )
        assert producer.flush(30) == 0
        return int(end)

    def row_at(self, version: int, key: int) -> dict[str, Any] | None:
        """The row of a version of the table."""
        table = DeltaTable(self.running.table(self.name).table_uri, version)
        rows = pa.table(table.scan(predicate=f"id = {key}")).to_pylist()
        alive = [row for row in rows if not row["_cdc"].get("deleted")]
        assert len(alive) < 2
        return alive[0] if alive else None


def changed(database: Database, key: int) -> AbstractContextManager[None]:
    """One row is changed all the time."""
    update = f"UPDATE t SET n = n + 1 WHERE id = {key}"
    return going_on(lambda: database.execute(update), pause_s=0.02)


def one(lines: list[Line], **like: Any) -> Line:
    """The only line that is like this."""
    found = [line for line in lines if all(line.get(name) == like[name] for name in like)]
    assert len(found) == 1, (like, found)
    return found[0]


KEYS = (
    "CREATE TABLE k (at {moment}, s varchar(20), d numeric(8, 2), c char(4), n int,"
    " PRIMARY KEY (c, at, s, d))"
)
MOMENTS = {"postgres": "timestamp", "mysql": "datetime(6)"}
ROW = "INSERT INTO k (at, s, d, c, n) VALUES ('2026-01-01 10:00:00.5', 'it''s', 1.5, 'ab', {n})"
ASKED = ["ab", "2026-01-01 10:00:00.5", "it's", 1.5]


def keys_of_several_types(story: Story) -> None:
    """A row whose key has columns of several types is found by any spelling of them."""
    table = story.database.identifier("k")
    story.database.execute("UPDATE k SET n = 2")
    story.running.wait_equal(table)
    for key in (ASKED, dict(zip(("c", "at", "s", "d"), ASKED, strict=True)), [*ASKED[:3], "1.50"]):
        said = story.tell(key, table=table)
        assert [(line["op"], line["fate"]) for line in said["story"]] == [
            ("u", "applied"),
            ("r", "applied"),
        ]
        assert said["story"][0]["is_now"]
        assert (said["agreement"], said["notes"]) == ("same", [])
    said = story.tell([*ASKED[:3], 1.25], table=table)
    assert (said["story"], said["agreement"]) == ([], "neither")


def what_somebody_has_changed(story: Story) -> None:
    """A row that was changed beside the log, and one version of the table."""
    lines = story.tell(2)["story"]
    first = lines[-1]["version"]
    before = story.tell(2, "--at", str(first), "--with-values")
    assert before["lake"]["row"]["v"] == "v2"
    assert [line["op"] for line in before["story"]] == ["r"]
    assert before["later"] == len(lines) - 1 > 0
    path = story.running.table(story.name).table_uri
    DeltaTable(path).update({"v": "'mine'"}, predicate="id = 2")
    said = story.tell(2, code=1)
    assert (said["agreement"], said["columns"], said["on_the_way"]) == ("differing", ["v"], False)
    story.tell(2, "--at", "1000000", code=1, raises="unknown-version")


@EACH
def test_every_line_is_what_was_done(any_database: Database, tmp_path: Path, engine: str):
    database = any_database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(40))")
    for key in range(1, 6):
        database.execute(f"INSERT INTO t VALUES ({key}, 0, 'v{key}')")
    kind = "postgres" if database.server.connector == "postgres" else "mysql"
    database.execute(KEYS.format(moment=MOMENTS[kind]))
    database.execute(ROW.format(n=1))
    database.start_connector({"snapshot.mode": "initial", "topic.creation.default.partitions": "1"})
    sections = {**SNAPSHOT, "lake": {"path": "./lake", "engine": engine}}
    with Running(database, tmp_path, sections) as running:
        running.lakemark.start()
        running.wait_equal()
        story = Story(running, "t")
        name = story.name
        database.execute("UPDATE t SET v = 'first' WHERE id = 1")
        running.wait_equal(name)
        first = story.records()[-1]
        database.execute("UPDATE t SET v = 'other' WHERE id = 2")
        running.wait_equal(name)

        # The connector sends it again; what comes behind it shows that it was read.
        resent = story.put(first, first.value())
        # Half a record of the same row: its row is read again, as a chunk.
        letter = story.put(first, (first.value() or b"")[:40])
        wait_for(
            lambda: running.lakemark.events("snapshot.ended"), STATE_S, "the row to be read again"
        )
        # The row is changed while the whole table is read, a few times: a chunk's row loses.
        with changed(database, 1):
            for run in BUSY:
                running.lakemark.command("snapshot", "start", name, "--id", run, "--wait")
        running.wait_equal(name)
        database.execute("UPDATE t SET id = 101, v = 'moved' WHERE id = 1")
        running.wait_equal(name)

        said = story.tell(101)
        lines: list[Line] = said["story"]
        assert "← the row of now" in story.shown(101)
        assert "moved" not in story.shown(101).replace("moved from", "").replace("moved to", "")
        assert '"v":"moved"' in story.shown(101, "--with-values")
        assert said["agreement"] == "same"
        assert not said["on_the_way"]
        assert set(said["keys"]) == {"[1]", "[101]"}
        assert said["notes"] == []
        assert "row" not in json.dumps(said["lake"])
        # All records of the two keys are there, each once.
        told = {line["offset"] for line in lines if line["kind"] == "record"}
        mine = {m.offset() for m in story.records() if json_key(m) in {1, 101}}
        assert told == mine

        arrived = one(lines, key="[101]", op="c", fate="applied", is_now=True)
        assert arrived["other_key"] == "[1]"
        left = one(lines, key="[1]", op="d")
        assert (left["fate"], left["other_key"]) == ("applied", "[101]")
        assert one(lines, offset=resent)["fate"] == "resent"
        dead = one(lines, offset=letter)
        (there,) = running.dead_letters()
        assert (dead["fate"], dead["dead_letter"]) == ("dead-letter", header(there, "id"))
        chunks = [line for line in lines if line["kind"] == "chunk"]
        again = [line["fate"] for line in chunks if line["run"] not in BUSY]
        assert again == ["applied"]
        assert {line["run"] for line in chunks} >= BUSY
        lost = [line for line in chunks if line["fate"] in {"lost", "fills"}]
        assert lost
        for line in lost:
            assert line["by"]["offset"] in told
            assert line["lo"]["position"] < line["by"]["position"]
            # The place of a read may be where the log still ends when its window is closed.
            assert line["lo"]["position"] <= line["hi"]["position"]
        # The runs over the whole table have removed nothing of the row.
        swept = {line["run"]: line["fate"] for line in lines if line["kind"] == "sweep"}
        assert swept == dict.fromkeys(BUSY, "applied")
        for line in lines:
            if line["kind"] != "sweep":
                check_version(story, line)
        keys_of_several_types(story)
        what_somebody_has_changed(story)


def json_key(message: Message) -> int | None:
    """The id in a record's key."""
    key = json.loads(message.key() or b"{}")
    found = key.get("payload", key).get("id")
    return None if found is None else int(found)


def position_of(line: Line) -> str:
    """The position that a record's or a chunk's row has in the table."""
    return str(line["lo"]["position"] if line["kind"] == "chunk" else line["position"])


def check_version(story: Story, line: Line) -> None:
    """Look whether the version that a line names has what the line says of it."""
    version, key = line["version"], int(json.loads(line["key"])[0]) if line["key"] else 0
    if line["fate"] == "applied":
        assert version is not None, line
        row = story.row_at(version, key)
        if line.get("op") == "d":
            assert row is None, line
            return
        assert row is not None, line
        assert row["_cdc"]["position"].hex() == position_of(line), line
    elif line["fate"] == "superseded":
        row = story.row_at(version, key)
        if line["by"].get("op") != "d":  # a chunk's row has none
            assert row is not None, line
            assert row["_cdc"]["position"].hex() == position_of(line["by"]), line
    elif line["fate"] in {"lost", "fills"}:
        if version is not None:
            row = story.row_at(version, key)
            assert row is None or row["_cdc"]["position"].hex() > line["lo"]["position"], line
    else:
        assert line["fate"] in {"resent", "dead-letter", "none"}, line
