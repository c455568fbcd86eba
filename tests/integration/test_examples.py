"""The local example from its first step to its last, on real servers; signals and readers with it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lakemark.snapshot import notifications
from stack.lakemark_process import LakemarkProcess
from stack.local import ROOT, Database, Servers
from stack.processes import wait_for
from tests.kit.nightly import nightly
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.running import SPARK, STATE_S
from tests.kit.snapshots import kinds

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

EXAMPLES = ROOT / "examples"
LOCAL = EXAMPLES / "local"
PAGE = (LOCAL / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def shop(stack: Servers) -> Iterator[Database]:
    """An empty database `shop`, as the example finds it."""
    with stack.fresh_database("DROP TABLE debezium_signal", name="shop") as database:
        yield database
        for role in ("debezium", "lakemark"):
            database.execute(f"DROP OWNED BY {role}")
            database.execute(f"DROP ROLE {role}")


@pytest.fixture
def folder(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example in which only addresses differ, and what else a test needs."""
    text = (LOCAL / "lakemark.yaml").read_text()
    (tmp_path / "lakemark.yaml").write_text(with_names(text, addresses_of(shop)))
    host, port = shop.server.for_connect
    names = {'"localhost"': f'"{host}"', '"5432"': f'"{port}"'}
    connector = with_names((LOCAL / "connector.json").read_text(), names)
    (tmp_path / "connector.json").write_text(connector)
    shutil.copy(LOCAL / "setup.sql", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", re.search(r"SHOP_PASSWORD=(\w+)", PAGE)[1])
    monkeypatch.setenv("LAKEMARK_HTTP__BIND", "127.0.0.1:0")
    monkeypatch.setenv("LAKEMARK_LOG__FORMAT", "json")
    monkeypatch.setenv("LAKEMARK_SPARK", json.dumps(SPARK))
    return tmp_path


def addresses_of(shop: Database) -> dict[str, str]:
    """The servers' of this run, by those of the page."""
    stack = shop.stack
    return {
        "localhost:9092": stack.kafka.bootstrap,
        "http://localhost:8083": stack.connect.url,
        "localhost:5432": f"{stack.postgres.host}:{stack.postgres.port}",
    }


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of the examples, run as its page says."""
    path = EXAMPLES / arguments[0]
    return subprocess.run(
        [sys.executable, str(path), *arguments[1:]],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@nightly
def test_the_local_example_shows_what_its_page_says(shop: Database, folder: Path):
    addresses, shell = addresses_of(shop), PageShell(folder / "shell", here=folder)

    def step(command: str) -> str:
        text = lines("examples/local/README.md", command)
        return with_names(text, {a: ours for a, ours in addresses.items() if a in text})

    assert shell.run(step("setup.sql")).splitlines()[-1].startswith("GRANT")  # 1
    put, asked = step("curl").splitlines()  # 2
    assert json.loads(shell.run(put))["name"] == "shop"
    shop.config = json.loads((folder / "connector.json").read_text())
    shop.wait_streaming()
    assert shell.run(asked).count('"state":"RUNNING"') == 2
    valid, *_, counted = shell.run(step("lakemark doctor")).splitlines()  # 3
    assert valid.startswith("ok: shop can be started")
    assert counted.startswith("0 ✗")

    lakemark = LakemarkProcess(folder / "lakemark.yaml")
    lakemark.start()  # 4
    try:
        lakemark.wait_for_event("batch.done", STATE_S)  # the next step waits less than a first one
        said = shell.run(step("lakemark snapshot start")).splitlines()  # 5
        assert "completed" in said[-1]
        bootstrap = shop.stack.kafka.bootstrap
        asked = script(
            "signals/send_signal.py", bootstrap, "shop", "public.customers", "public.orders"
        )
        assert asked.returncode == 0, asked.stderr
        said = [line.split()[0] for line in asked.stdout.splitlines()]
        assert (said[0], said[-1], said.count("TABLE_SCAN_COMPLETED")) == (
            "STARTED",
            "COMPLETED",
            2,
        )
        refused = script("signals/send_signal.py", bootstrap, "shop", "public.secrets")
        assert (refused.returncode, refused.stdout.split()[0]) == (1, "REJECTED")
        signals_of_a_shell(shop, folder)

        shown_states = shell.run(step("psql -c"))  # 6
        assert shown_states.count("streaming") >= 2
        read = step("with_delta_rs.py").replace("../reading", str(EXAMPLES / "reading"))

        def shown() -> str:
            found = shell.run(read)
            return found if "Decimal('99.00')" in found and "2 rows" in found else ""

        assert "Barbara" not in wait_for(shown, STATE_S, "the change in the lake")
        tables = json.loads(lakemark.command("status", "--output", "json"))["tables"]
        assert {table["name"]: table["state"] for table in tables} == {
            "public.customers": "streaming",
            "public.orders": "streaming",
        }
        newest = script("reading/with_polars.py", "lake/public/customers")
        assert "Grace ┆ 99.00" in newest.stdout, newest.stderr
    finally:
        lakemark.kill()


def signals_of_a_shell(shop: Database, folder: Path) -> None:
    """The lines for kcat are answered, and whoever listens sees the answers."""
    kafka = shop.stack.kafka
    shell, answers = PageShell(folder / "shell", here=folder), kafka.reader("shop.notifications")

    def of(command: str) -> str:
        text = lines("examples/signals/README.md", command)
        return with_names(text, {"localhost:9092": kafka.bootstrap})

    def said(values: Iterable[bytes], signal: str) -> list[str]:
        notes = [note for note in map(notifications.read, values) if note is not None]
        return kinds(n for n in notes if n.id == signal and n.type != "IN_PROGRESS")

    def answered(signal: str, *wanted: str) -> None:
        wait_for(
            lambda: (
                said((r.value() for r in answers.records()), signal)[: len(wanted)] == [*wanted]
            ),
            STATE_S,
            f"{wanted} of {signal}",
        )

    others = {json.loads(shlex.split(line)[1])["id"]: line for line in of("hold").splitlines()}
    wanted = {
        "friday": ["STARTED", "TABLE_SCAN_COMPLETED", "COMPLETED"],
        "some": ["STARTED", "PAUSED", "RESUMED", "ABORTED"],
        "hold": ["PAUSED"],
        "go": ["RESUMED"],
        "end": ["ABORTED"],
    }
    assert [*wanted] == ["friday", *others]
    try:
        listening = shell.begin(of("kcat -C"))
        listening.wait_said("Reached end of topic shop.notifications")
        shell.run(of("friday"))
        answered("friday", *wanted["friday"])
        with shop.connect() as older, older.transaction():
            older.execute("SELECT pg_current_xact_id()")  # no chunk is proved while it is open
            for signal, line in others.items():
                shell.run(line)
                answered(signal, wanted[signal][0])
        answered("some", *wanted["some"])
        ((_, end),) = kafka.end_offsets("shop.notifications").items()
        listening.wait_said(f"at offset {end}")
        heard = [line.encode() for line in listening.interrupt().splitlines()]
    finally:
        shell.close()
        answers.close()
    assert {signal: said(heard, signal) for signal in wanted} == wanted
