"""`lakemark plan` and `lakemark status` against the real stack: before, after, and after changes."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from lakemark.kafka.brokers import Cluster
from lakemark.settings.config import load
from stack.local import Database
from stack.processes import free_port, wait_for
from tests.kit.command_line import invoke
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

SCHEMAS = Path(__file__).parents[2] / "schemas"
ORDERS = "public.orders"
ROWS = 1000


def command(file: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command."""
    done = invoke(*arguments, "-c", str(file), "-o", "json")
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def plan(file: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and plan, which must fit its schema."""
    code, found = command(file, "plan")
    Draft202012Validator(json.loads((SCHEMAS / "plan.json").read_text())).validate(found)
    return code, found


def orders(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = [table for table in document["tables"] if table["name"] == ORDERS]
    return found


def edited(file: Path, name: str, **sections: Any) -> Path:
    """A copy of the configuration with other sections, beside it."""
    changed = file.with_name(name)
    changed.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **sections}))
    return changed


def created(database: Database) -> None:
    database.execute("CREATE TABLE orders (id serial PRIMARY KEY, note text)")
    database.execute("CREATE TABLE returns (id serial PRIMARY KEY)")
    database.execute(
        f"INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(1, {ROWS}) AS n"
    )
    database.execute("ANALYZE orders")
    database.start_connector()


def test_the_plan_and_the_state_before_a_run_after_it_and_after_changes(
    database: Database, tmp_path: Path
):
    created(database)
    http = {"bind": f"127.0.0.1:{free_port()}"}
    with Running(database, tmp_path, {**SNAPSHOT, "http": http}) as running:
        file = running.lakemark.config
        running.wait_captured("orders")
        before_the_first_run(file)
        running.once()
        after_it(file)
        after_changes(database, running, file)
        the_state_by_topics_is_that_of_the_page(database, running, file)


def before_the_first_run(file: Path) -> None:
    config = load(file)
    code, found = plan(file)
    assert (code, found["checkpoint"]["batch"], found["compared"]) == (0, -1, "nothing")
    table = orders(found)
    assert (table["key"], table["waiting"], table["target"]["action"]) == (["id"], ROWS, "create")
    assert {topic["action"] for topic in found["topics"]} == {"create"}
    assert {start["basis"] for start in found["starts"]} == {"earliest"}
    scans = {scan["table"]: scan for scan in found["snapshot"]["tables"]}
    assert scans.keys() == {ORDERS, "public.returns"}
    assert (scans[ORDERS]["rows"], scans[ORDERS]["chunks"]) == (ROWS, 10)
    with Cluster(config) as cluster:
        assert cluster.partition_counts(config.topics.all()) == {}
    assert not Path(config.lake.path).exists()
    assert not Path(config.checkpoint).exists()
    assert command(file, "status")[1]["pipeline"] is None


def after_it(file: Path) -> None:
    code, found = plan(file)
    assert code == 0
    assert found["checkpoint"]["batch"] >= 0
    assert (orders(found)["waiting"], orders(found)["target"]["action"]) == (0, "keep")
    assert {topic["action"] for topic in found["topics"]} == {"keep"}
    assert {start["basis"] for start in found["starts"] if start["end"]} == {"checkpoint"}
    assert (found["compared"], found["changes"]) == ("running", [])


def after_changes(database: Database, running: Running, file: Path) -> None:
    database.execute("ALTER TABLE orders ADD COLUMN total numeric(10,2)")
    database.execute("INSERT INTO orders (note, total) SELECT 'x', 1 FROM generate_series(1, 5)")
    running.wait_captured("orders")
    version = running.version(ORDERS)
    code, found = plan(file)
    assert code == 0
    assert orders(found)["waiting"] == 5
    assert orders(found)["target"]["added"] == ["total decimal128(10, 2)"]

    changed = edited(
        file, "changed.yaml", stream={"trigger": "2s", "shards": 3},
        lake={"path": "./lake", "deletes": "soft"}, snapshot={"chunk_rows": 50},
    )  # fmt: skip
    code, found = plan(changed)
    assert code == 1
    takes = {change["setting"]: change["takes"] for change in found["changes"]}
    assert takes["stream.shards"] == "new checkpoint"
    assert takes["lake.deletes"] == takes["stream.trigger"] == "restart"
    assert takes["snapshot.chunk_rows"] == "live"
    assert [p["code"] for p in found["problems"] if p["stops"]] == ["checkpoint-mismatch"]
    assert orders(found)["target"]["added"][-1] == "_cdc.deleted bool"
    assert found["snapshot"]["tables"][0]["chunks"] > 10
    assert running.version(ORDERS) == version

    _, seen = command(file, "status")
    assert (seen["asked"], orders(seen)["lag"]["records"]) == ("topics", 5)
    assert orders(seen)["lag"]["seconds"] > 0
    assert orders(seen)["rows"] == ROWS


def the_state_by_topics_is_that_of_the_page(
    database: Database, running: Running, file: Path
) -> None:
    running.lakemark.start()
    quiet = edited(file, "quiet.yaml", http={"bind": "none"})
    running.wait_equal()
    page = load(file).http.bind

    def settled() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"http://{page}/v1/status", timeout=120) as answer:
            found = json.loads(answer.read())
        return [found] if orders(found)["lag"]["records"] == 0 else []

    def streaming_by_topics() -> bool:  # the page says it first
        seen: str = command(quiet, "status")[1]["pipeline"]["state"]
        return seen == "streaming"

    (said,) = wait_for(settled, STATE_S, "nothing to be unread")
    wait_for(streaming_by_topics, STATE_S, "the topics to say that it streams")
    _, asked = command(file, "status")
    _, by_topics = command(quiet, "status")
    assert (asked["asked"], by_topics["asked"]) == ("pipeline", "topics")
    for found in (said, asked, by_topics):
        states = {table["name"]: table["state"] for table in found["tables"]}
        assert states == {ORDERS: "streaming", "public.returns": "waiting"}
    for field in ("state", "rows", "events", "dead_letters", "lag", "newest_source_ms"):
        assert orders(by_topics)[field] == orders(asked)[field] == orders(said)[field]
    assert asked["pipeline"]["state"] == by_topics["pipeline"]["state"]
    assert abs(orders(by_topics)["committed_ms"] - orders(asked)["committed_ms"]) < 10_000
    assert plan(quiet)[1]["changes"][0]["setting"] == "http.bind"
