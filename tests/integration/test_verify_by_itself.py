"""Tables compared with their database again and again, without a command."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from stack.database import Database
from stack.lakemark_process import Event
from stack.processes import wait_for
from tests.kit.http_side import HttpSide
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers_of
from tests.kit.running import Running
from tests.kit.servers import on
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 300
EVERY_S = 3
FOUND_S = 300.0
"""A period, a turn of each table before, and a loaded machine."""
SLOW, FAST = 2, 1_000_000
"""Rows a second: 300 rows take minutes, or no time."""


class Proofs:
    """What the pipeline's own topic says of the proofs of tables."""

    def __init__(self, running: Running) -> None:
        self.running = running

    def of(self, table: str) -> Event:
        name = self.running.database.identifier(table)
        return self.running.lakemark.progress().get(name, {}).get("proof", {})

    def wait(self, table: str, what: str, holds: Any) -> Event:
        """The proof of a table once this is true of it."""
        name = self.running.database.identifier(table)
        said = self.running.lakemark.wait_for_progress(
            name, what, lambda r: holds(r.get("proof", {})), deadline_s=FOUND_S
        )
        return said["proof"]


def plant(path: str) -> None:
    """One row less, and one that is not what the source has."""
    DeltaTable(path).delete("id = 21")
    DeltaTable(path).update({"v": "'other'"}, predicate="id = 12")


@on("postgres", pytest.param("mariadb-11.4", marks=nightly))
def test_what_is_planted_is_found_and_mended_without_a_command(
    any_database: Database, tmp_path: Path
):
    database = any_database
    for table in ("t", "quiet"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(40))")
        database.execute(
            f"INSERT INTO {table} (id, v) SELECT seq, CONCAT('v', seq) FROM"
            f" {numbers_of(database, 1, ROWS)}"
        )
    database.execute("CREATE TABLE keyless (n int)")
    database.start_connector({"snapshot.mode": "initial"})
    verify = {"every": f"{EVERY_S}s", "repair": True, "rows_per_second": FAST}
    sections = {
        **SNAPSHOT, "snapshot": {"chunk_rows": 50}, "verify": verify,
        "http": {"bind": "127.0.0.1:0", "ready_proved": "1h"},
    }  # fmt: skip
    with Running(database, tmp_path, sections) as running:
        proofs, name = Proofs(running), database.identifier("t")
        names = [name, database.identifier("quiet")]
        running.lakemark.start()
        running.wait_equal(*names)
        first = {t: proofs.wait(t, "proved", lambda p: p.get("proved_ms")) for t in ("t", "quiet")}
        assert {one["rows"] for one in first.values()} == {ROWS}
        assert all(one.get("found", {}) == {} for one in first.values())
        site = HttpSide(running)
        assert wait_for(lambda: site.probes() == (200, 200), FOUND_S, "readiness")

        path = str(running.table(name).table_uri)
        plant(path)
        found = proofs.wait("t", "found", lambda p: p.get("found"))
        assert found["found"] == {"missing": 1, "differing": 1}
        assert (found["mended"], found["proved_ms"]) == (True, found["turn_ms"])
        assert found["proved_ms"] > first["t"]["proved_ms"]
        running.wait_equal(*names)
        again = proofs.wait("t", "proved again", lambda p: p and not p.get("found"))
        assert again["turn_ms"] - found["turn_ms"] >= EVERY_S * 1000
        assert again["position"] >= found["position"] != ""

        shown = site.table(name)
        assert shown["state"] == "streaming"
        assert shown["proof"]["expected"]
        _, metrics = site.ask("/metrics")
        age = next(
            line for line in metrics.splitlines()
            if line.startswith(f'lakemark_proved_age_seconds{{table="{name}"}}')
        )  # fmt: skip
        assert 0 <= float(age.rpartition(" ")[2]) < FOUND_S
        assert f"lakemark_verify_every_seconds {float(EVERY_S)}" in metrics
        said = running.lakemark.events("verify.found")
        assert [(e["table"], e["missing"], e["differing"], e["mended"]) for e in said] == [
            (name, 1, 1, True)
        ]
        _is_noted(running, name, proofs)

        # Limits of a run that is under way, and of those to come.
        settings = running.lakemark
        settings.command("snapshot", "set", "verify", "--rows-per-second", str(SLOW))

        def held() -> dict[str, Any]:
            runs = [one for one in site.status()["snapshots"] if one["state"] == "running"]
            scans = [scan for one in runs for scan in one["tables"]]
            return next((s for s in scans if 0 < s["chunks"] < (s["total_chunks"] or 0)), {})

        slow = wait_for(held, FOUND_S, "a run that reads two rows a second")
        assert slow["rows"] < ROWS
        before = proofs.of("t"), proofs.of("quiet")
        settings.command("snapshot", "set", "verify", "--rows-per-second", str(FAST))
        for table, proof in zip(("t", "quiet"), before, strict=True):
            proofs.wait(table, "newer", lambda p, old=proof: p["turn_ms"] > old["turn_ms"])

        # What was proved outlives the process, and the checkpoint.
        settings.kill()
        kept = proofs.of("t")["proved_ms"]
        settings.environment["LAKEMARK_VERIFY__EVERY"] = "1d"
        settings.environment["LAKEMARK_CHECKPOINT"] = str(tmp_path / "another")
        settings.start()
        new = HttpSide(running)
        assert wait_for(lambda: new.table(name).get("proof"), FOUND_S, "the table")
        assert new.table(name)["proof"]["proved_ms"] >= kept


def _is_noted(running: Running, name: str, proofs: Proofs) -> None:
    """The Delta table says the same of itself, in a commit that names it."""

    def noted() -> bool:
        table, proof = running.table(name), proofs.of("t")
        text = table.metadata().configuration.get("lakemark.proved", "{}")
        told = json.loads(text)
        history = [one.get("userMetadata") for one in table.history(20)]
        return told.get("at_ms") == proof["proved_ms"] and text in history

    assert wait_for(noted, FOUND_S, "the property of the table")
