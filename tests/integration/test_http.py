"""A running pipeline over HTTP: probes, state, metrics, and a signal that is answered."""

import json
from pathlib import Path
from typing import Any

import pytest

from stack.local import Database
from stack.processes import wait_for
from tests.kit.http_side import HttpSide
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

ORDERS = "public.orders"
ROWS = 1000


def create(database: Database) -> None:
    database.execute("CREATE TABLE orders (id serial PRIMARY KEY, note text)")
    database.execute("CREATE TABLE quiet (id serial PRIMARY KEY)")
    database.execute(
        f"INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(1, {ROWS}) AS n"
    )
    database.start_connector({"snapshot.mode": "no_data"})


def test_a_running_pipeline_answers(database: Database, tmp_path: Path):
    create(database)
    with Running(database, tmp_path, SNAPSHOT) as running:
        running.lakemark.start()
        site = HttpSide(running)
        assert site.ask("/healthz")[0] == 200
        found = {t["name"]: t["state"] for t in site.status()["tables"]}
        assert found == {ORDERS: "waiting", "public.quiet": "waiting"}

        asked = {"data-collections": [ORDERS], "delay": "200ms"}
        signal = {"type": "execute-snapshot", "data": asked}
        code, text = site.ask("/v1/signals", signal)
        assert code == 202, text
        run = json.loads(text)["id"]

        def in_flight() -> list[dict[str, Any]]:
            now = site.status()
            scans = [scan for run in now["snapshots"] for scan in run["tables"]]
            return (
                [c for scan in scans for c in scan["in_flight"] if c["lo"]]
                if now["windows"]
                else []
            )

        chunk, *_ = wait_for(in_flight, STATE_S, "a chunk in flight between two windows")
        assert chunk["state"] in {"read", "settling"}
        assert 0 < chunk["rows"] <= ROWS

        def completed(run: str) -> dict[str, Any]:
            def answered() -> list[dict[str, Any]]:
                signals = [s for s in site.status()["signals"] if s["id"] == run]
                return [s for s in signals if (s["answer"] or {}).get("type") == "COMPLETED"]

            (found,) = wait_for(answered, STATE_S, "the run to have completed in /v1/status")
            return found

        seen = completed(run)
        assert (seen["type"], seen["tables"]) == ("execute-snapshot", [ORDERS])
        (scan,) = next(r for r in site.status()["snapshots"] if r["id"] == run)["tables"]
        assert (scan["status"], scan["rows"], scan["percent"]) == ("SUCCEEDED", ROWS, 100)

        wait_for(lambda: site.status()["windows"] is None, STATE_S, "the last window to be closed")
        assert scan["in_flight"] == []

        running.wait_equal()
        orders = site.table(ORDERS)
        assert (orders["state"], orders["rows"]) == ("streaming", ROWS)
        assert orders["committed_ms"] is not None
        wait_for(lambda: site.ask("/readyz")[0] == 200, STATE_S, "/readyz to be 200")

        _, metrics = site.ask("/metrics")
        assert f'lakemark_table_rows{{table="{ORDERS}"}} {float(ROWS)}' in metrics
        assert 'lakemark_pipeline_state{state="streaming"} 1.0' in metrics

        database.execute("INSERT INTO orders (note) SELECT 'live' FROM generate_series(1, 10)")
        wait_for(lambda: site.table(ORDERS)["rows"] == ROWS + 10, STATE_S, "ten more rows")
        assert sum(s["events"] for s in json.loads(site.ask("/v1/history")[1])["stretches"]) >= 10

        assert site.ask(f"/v1/tables/{ORDERS}/pause", {})[0] == 202
        wait_for(lambda: site.table(ORDERS)["state"] == "paused", STATE_S, "orders to be paused")
        assert site.ask(f"/v1/tables/{ORDERS}/resume", {})[0] == 202
        wait_for(lambda: site.table(ORDERS)["state"] == "streaming", STATE_S, "orders to go on")

        shell = PageShell(tmp_path / "shell", here=tmp_path)
        asking = lines("README.md", "curl -d")
        said = shell.run(with_names(asking, {"http://127.0.0.1:8780": site.address}))
        assert completed(json.loads(said)["id"])["tables"] == [ORDERS]
        running.lakemark.stop()
        assert not running.lakemark.is_running
