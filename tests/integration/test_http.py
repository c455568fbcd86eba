"""A running pipeline over HTTP: probes, state, metrics, and a signal that is answered."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from stack.browser import find_browser
from stack.local import Database
from stack.processes import wait_for
from tests.kit.browser import Visit, browser, required, visit
from tests.kit.http_side import HttpSide
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SNAPSHOT, windows_held_open

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

ORDERS = "public.orders"
LONG = "a_name_of_a_table_that_is_longer_than_most"
ROWS = 1000
# A backtracking engine is busy with the first for ever; each other one once failed every batch.
FREEZES = r"((\w|.)+)+X"
UNREADABLE = (
    b'{"type":"wake","x":' + b"[" * 100_000,
    b'{"type":"table-read","table":"public.orders","until":"x","keys":7}',
    b'{"type":"table-resnapshot","table":"public.orders","reason":"\\ud800"}',
    b'{"type":"run-start","run":"\\ud800"}',
    b'{"type":"void","attempt":1180591620717411303424}',
    b'{"type":["table-pause"],"table":{}}',
)


def create(database: Database) -> None:
    database.execute("CREATE TABLE orders (id serial PRIMARY KEY, note text)")
    database.execute("CREATE TABLE quiet (id serial PRIMARY KEY)")
    database.execute(f"CREATE TABLE {LONG} (id serial PRIMARY KEY)")
    database.execute(
        f"INSERT INTO orders (note) SELECT 'n' || n FROM generate_series(1, {ROWS}) AS n"
    )
    database.start_connector({"snapshot.mode": "no_data"})


def answered(site: HttpSide, run: str, kind: str) -> dict[str, Any]:
    """A signal as the page lists it, once its answer is of this kind."""

    def found() -> list[dict[str, Any]]:
        signals = [s for s in site.status()["signals"] if s["id"] == run]
        return [s for s in signals if (s["answer"] or {}).get("type") == kind]

    return wait_for(found, STATE_S, f"{run} to be answered by {kind} in /v1/status")[0]


def hostile(running: Running, site: HttpSide) -> None:
    """A signal and control records that are not answered by standing still."""
    kafka, name = running.database.stack.kafka, running.database.name
    producer = kafka.producer()
    for value in UNREADABLE:
        producer.produce(f"{name}.control", value, b"hostile")
    value = {"id": "r", "type": "execute-snapshot", "data": {"data-collections": [FREEZES]}}
    producer.produce(f"{name}.signals", json.dumps(value), name.encode())
    assert producer.flush(30) == 0
    answered(site, "r", "REJECTED")
    assert site.ask("/healthz")[0] == 200
    assert site.ask("/v1/signals", value | {"id": "over-http"})[0] == 202
    answered(site, "over-http", "REJECTED")
    running.database.execute("INSERT INTO orders (note) VALUES ('goes on')")
    running.wait_equal()
    assert running.lakemark.events("query.failed") == []


def steered_from_the_page(running: Running, site: HttpSide, seen: Visit) -> None:
    """A person's clicks, and what becomes of them; the page must show it by itself."""
    page, patience = seen.page, STATE_S * 1000
    row = page.locator("#tables tr", has_text=ORDERS)
    page.get_by_role("button", name=f"Pause {ORDERS}", exact=True).click()
    expect(row).to_contain_text("paused", timeout=patience)
    running.database.execute("INSERT INTO orders (note) VALUES ('while paused')")
    page.get_by_role("button", name=f"Resume {ORDERS}", exact=True).click()
    expect(row).to_contain_text("streaming", timeout=patience)
    running.wait_equal()

    page.get_by_role("button", name="New snapshot").click()
    dialog = page.get_by_role("dialog", name="New snapshot")
    dialog.get_by_label(ORDERS).check()
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_be_hidden()
    run = wait_for(lambda: page.locator("#said").inner_text(), STATE_S, "an answer").split()[-1]
    page.get_by_role("button", name="Pause all").click()
    answered(site, run, "PAUSED")
    page.get_by_role("button", name="Resume all").click()
    answered(site, run, "COMPLETED")
    listed = page.locator("#signals li", has_text=run)
    expect(listed).to_contain_text("completed", timeout=patience)
    assert seen.errors == []


def test_a_running_pipeline_answers(database: Database, tmp_path: Path):
    create(database)
    slowly = {**SNAPSHOT, "snapshot": {**SNAPSHOT["snapshot"], "chunk_delay": "1s"}}
    with Running(database, tmp_path, slowly) as running:
        running.lakemark.start()
        site = HttpSide(running)
        assert site.ask("/healthz")[0] == 200
        found = {t["name"]: t["state"] for t in site.status()["tables"]}
        assert found == dict.fromkeys((ORDERS, "public.quiet", f"public.{LONG}"), "waiting")

        def in_flight() -> list[dict[str, Any]]:
            now = site.status()
            scans = [scan for run in now["snapshots"] for scan in run["tables"]]
            return (
                [c for scan in scans for c in scan["in_flight"] if c["lo"]]
                if now["windows"]
                else []
            )

        asked = {"data-collections": [ORDERS], "delay": "200ms"}
        signal = {"type": "execute-snapshot", "data": asked}
        with windows_held_open(database):  # so that whoever looks does see a chunk on its way
            code, text = site.ask("/v1/signals", signal)
            assert code == 202, text
            run = json.loads(text)["id"]
            chunk, *_ = wait_for(in_flight, STATE_S, "a chunk in flight between two windows")
        assert chunk["state"] in {"read", "settling"}
        assert 0 < chunk["rows"] <= ROWS

        seen = answered(site, run, "COMPLETED")
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

        hostile(running, site)

        shell = PageShell(tmp_path / "shell", here=tmp_path)
        asking = lines("docs/watching.md", "curl -d")
        said = shell.run(with_names(asking, {"http://127.0.0.1:8780": site.address}))
        assert answered(site, json.loads(said)["id"], "COMPLETED")["tables"] == [ORDERS]

        if find_browser() or required():
            with browser() as chrome, visit(chrome, site.address) as seen:
                steered_from_the_page(running, site, seen)
        running.lakemark.stop()
        assert not running.lakemark.is_running
