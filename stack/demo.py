"""`./dev demo`: a shop's database, Kafka, Debezium, lakemark and a lake, on this machine.

    1. start PostgreSQL, Kafka and Connect
    2. create the shop and fill it
    3. start the connector, which takes its initial snapshot
    4. start `lakemark run`
    5. change the shop for a minute; in the middle kill -9 lakemark and start it again
    6. stop writing, let lakemark catch up, compare every row of every table

Everything of a run is below `.lakemark/demo-<pid>/` (`.lakemark/demo/` with --keep). What was
started is ended however the demo ends; lake and logs stay.
"""

import itertools
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psycopg
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.status import Status  # noqa: TC002 (no block for one name)
from rich.syntax import Syntax
from rich.table import Table

from lakemark.config import load
from lakemark.errors import LakemarkError
from lakemark.sink.names import folder_of
from stack import every_type, shop
from stack.compare import Comparer, Comparison
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import ROOT, Database, LocalStack
from stack.processes import Identity, StackError
from stack.workload import Workload

LOAD_S: Final = 60.0
"""How long the shop is changed."""
KILL_AFTER_S: Final = 20.0
"""When lakemark is killed: late enough for batches before it, early enough for load after it."""
CATCH_UP_S: Final = 300.0
"""Deadline for the tables to be equal; a busy machine needs a minute."""
SNAPSHOT_S: Final = 300.0
"""Deadline for the first batch with rows of the connector's snapshot."""
PULSE: Final = "public.pulse"
PULSE_SQL: Final = (
    "CREATE TABLE pulse (id int PRIMARY KEY, at timestamptz NOT NULL)",
    "INSERT INTO pulse VALUES (1, clock_timestamp())",
)
BEAT_S: Final = 0.25
KEPT: Final = "demo"
SCALE: Final = 1.0


@dataclass(slots=True)
class Measured:
    """What the demo has seen.

    Attributes:
        batches: (time of `batch.done`, its events), over both runs of lakemark.
        lags: seconds from the newest visible change to a look at the lake right after a batch.
        restart_s: from the kill to the query running again.
        applied_s: from the kill to the next finished batch.
    """

    batches: list[tuple[float, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    restart_s: float = 0.0
    applied_s: float = 0.0

    @property
    def events(self) -> int:
        """All events of all batches."""
        return sum(events for _, events in self.batches)

    def best_rate(self) -> float:
        """Events per second of the best batch, from the end of the one before to its own end."""
        rates = [
            events / (end - begin)
            for (begin, _), (end, events) in itertools.pairwise(sorted(self.batches))
            if events and end > begin
        ]
        return max(rates, default=0.0)


class Demo:
    """One run of the demo.

    Args:
        console: where it is shown.
        keep: leave everything running at the end.
    """

    def __init__(self, console: Console, *, keep: bool) -> None:
        self._console = console
        self._keep = keep
        self._begun = time.monotonic()
        self._step = ""
        self._status: Status | None = None
        self._stack: LocalStack | None = None
        self._lakemark: LakemarkProcess | None = None
        self._workload: Workload | None = None
        self._seen = Measured()
        self._told = 0.0

    def run(self) -> int:
        """Run it and return the exit code: 0 only if all tables are equal."""
        kept = False
        with self._console.status("starting") as self._status:
            try:
                equal = self._run()
                kept = self._keep
            except (StackError, LakemarkError, psycopg.Error, OSError) as error:
                self._explain(error)
                equal = False
            finally:
                self._status.stop()
                if not kept:
                    self._clean_up()
        self._say(f"[bold]{'all tables are equal' if equal else 'FAILED'}[/]")
        return 0 if equal else 1

    def _run(self) -> bool:
        stack = self._start_stack()
        database = self._fill(stack)
        with self._doing("starting the connector (snapshot.mode=initial)"):
            database.start_connector()
        config = self._configure(database)
        lakemark = self._lakemark = LakemarkProcess(
            config, log=stack.logs / "lakemark.log", detached=self._keep
        )
        with self._doing("starting lakemark (Spark takes most of it)"):
            lakemark.start()
        with self._doing("waiting for the first rows of the snapshot in the lake"):
            lakemark.wait_for_event("batch.done", SNAPSHOT_S, where=lambda e: bool(e.get("rows")))
        written = self._load(database, lakemark)
        found = self._catch_up(database, lakemark)
        self._report(found, lakemark, written)
        return found.is_equal

    # -- steps ------------------------------------------------------------------------------------

    def _start_stack(self) -> LocalStack:
        if self._keep:
            stop(self._say)
            shutil.rmtree(ROOT / ".lakemark" / KEPT, ignore_errors=True)
        stack = LocalStack(name=KEPT, detached=self._keep, progress=self._note)
        with self._doing("starting PostgreSQL, Kafka and Connect"):
            stack.start()
        self._stack = stack
        return stack

    def _fill(self, stack: LocalStack) -> Database:
        with self._doing("creating the shop"):
            database = stack.fresh_database(*PULSE_SQL, name="shop")
            with database.connect() as connection:
                shop.create(connection)
                rows = shop.fill(connection, scale=SCALE)
        self._say(f"  {rows:,} rows in {len(shop.TABLES)} tables")
        return database

    def _configure(self, database: Database) -> Path:
        assert self._stack is not None
        config = write_config(database, self._stack.directory, {"name": "demo"})
        self._say(f"lakemark's configuration, {_short(config)}:")
        self._console.print(Syntax(config.read_text(encoding="utf-8"), "yaml"))
        return config

    def _load(self, database: Database, lakemark: LakemarkProcess) -> Workload:
        workload = self._workload = Workload(database.dsn)
        begun = time.monotonic()
        workload.start()
        self._say(
            f"changing the shop for {LOAD_S:.0f} s; kill -9 of lakemark after {KILL_AFTER_S:.0f} s"
        )
        with database.connect() as connection:
            self._watch(begun + KILL_AFTER_S, connection, lakemark)
            killed = time.monotonic()
            lakemark.kill()
            self._say("[bold red]killed lakemark[/]: driver, JVM and Python workers, in mid-batch")
            with self._doing("starting lakemark again; the shop goes on changing"):
                lakemark.start()
            self._seen.restart_s = time.monotonic() - killed
            lakemark.wait_for_event("batch.done", SNAPSHOT_S)
            self._seen.applied_s = time.monotonic() - killed
            self._say(f"  first batch done {self._seen.applied_s:.1f} s after the kill")
            self._watch(max(begun + LOAD_S, time.monotonic() + 10), connection, lakemark)
        workload.stop()
        self._say(f"writes have stopped: {workload.written}")
        return workload

    def _watch(
        self, until: float, pulse: psycopg.Connection[Any], lakemark: LakemarkProcess
    ) -> None:
        """Show how it goes until a moment; a row that beats tells how old the lake is."""
        before, counted = self._seen.batches[:], 0
        while time.monotonic() < until:
            pulse.execute("UPDATE pulse SET at = clock_timestamp() WHERE id = 1")
            if not lakemark.is_running:
                raise StackError(f"lakemark has ended\n{lakemark.log_tail()}")
            batches = _batches(lakemark)
            self._seen.batches = [*before, *batches]
            if len(batches) > counted:
                counted = len(batches)
                self._look(lakemark)
            self._show(until)
            time.sleep(BEAT_S)

    def _look(self, lakemark: LakemarkProcess) -> None:
        """Read the beating row from the lake: its age right after a batch is the lag."""
        path = folder_of(load(lakemark.config).lake, PULSE)
        with suppress(DeltaError, FileNotFoundError):
            held = DeltaTable(path).to_pyarrow_table(columns=["at"]).column("at").to_pylist()
            if held:
                self._seen.lags.append((datetime.now(UTC) - held[0]).total_seconds())

    def _show(self, until: float) -> None:
        assert self._workload is not None
        written = self._workload.written
        lag = f"{self._seen.lags[-1]:.1f} s" if self._seen.lags else "-"
        text = (
            f"{written.transactions:,} transactions, {written.rows:,} rows written; "
            f"{self._seen.events:,} events in {len(self._seen.batches)} batches applied; "
            f"lag {lag}; {max(0.0, until - time.monotonic()):.0f} s to go"
        )
        if self._status is not None:
            self._status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._told > 5:
            self._told = time.monotonic()
            self._say(f"  {text}")

    def _catch_up(self, database: Database, lakemark: LakemarkProcess) -> Comparison:
        comparer = Comparer(
            dsn=database.dsn,
            config=lakemark.config,
            connector=database.config,
            tables=[*shop.TABLES, PULSE],
            not_captured=every_type.NOT_CAPTURED,
        )
        before = [b for b in self._seen.batches if b not in _batches(lakemark)]
        try:
            with self._doing("catching up and comparing every row"):
                return comparer.wait_until_equal(lakemark, deadline_s=CATCH_UP_S)
        except StackError as error:
            self._explain(error)
            return comparer.compare()
        finally:
            self._seen.batches = [*before, *_batches(lakemark)]

    # -- what is shown ----------------------------------------------------------------------------

    def _report(self, found: Comparison, lakemark: LakemarkProcess, workload: Workload) -> None:
        assert self._stack is not None
        states = {} if not lakemark.is_running else lakemark.progress()
        self._console.print(_comparison(found, states))
        seen = self._seen
        facts = Table(box=None, show_header=False)
        facts.add_row("written", str(workload.written))
        facts.add_row("applied", f"{seen.events:,} events in {len(seen.batches)} batches")
        facts.add_row("throughput", f"{seen.best_rate():,.0f} events/s in the best batch")
        if seen.lags:
            middle, worst = statistics.median(seen.lags), max(seen.lags)
            facts.add_row("lag", f"median {middle:.1f} s, worst {worst:.1f} s (commit to lake)")
        facts.add_row(
            "kill -9",
            f"running again after {seen.restart_s:.1f} s, "
            f"first batch done after {seen.applied_s:.1f} s",
        )
        self._console.print(facts)
        self._where_next(lakemark)

    def _where_next(self, lakemark: LakemarkProcess) -> None:
        assert self._stack is not None
        lake = Path(folder_of(load(lakemark.config).lake, "public.orders"))
        query = (
            "from deltalake import DeltaTable; "
            f'print(DeltaTable("{_short(lake)}").to_pandas().head())'
        )
        lines = [
            f"lake     {_short(lake.parents[1])}",
            f"logs     {_short(self._stack.logs)}",
            f"config   {_short(lakemark.config)}",
            "",
            "query with delta-rs:",
            f"  .venv/bin/python -c '{query}'",
        ]
        if self._keep:
            lines += [
                "ask lakemark:",
                f"  .venv/bin/lakemark status -c {_short(lakemark.config)}",
                f"psql       {self._stack.postgres.dsn('shop')}",
                f"Kafka      {self._stack.kafka.bootstrap}",
                f"Connect    {self._stack.connect.url}",
                "",
                "everything is still running; stop it with:",
                "  .venv/bin/python -m stack.demo stop",
            ]
        self._console.print(Panel("\n".join(lines), title="where to look next", expand=False))

    def _explain(self, error: Exception) -> None:
        """What failed, why, what to do, and the end of each log."""
        lines = [f"[bold]what[/]  {self._step or 'the demo'}"]
        hint = getattr(error, "hint", "") or (
            "read the log below; ./dev demo can simply be run again"
        )
        self._console.print(Panel("\n".join(lines), title="failed", style="red", expand=False))
        self._console.print(f"why   {error}", markup=False, highlight=False)
        self._console.print(f"do    {hint}", markup=False, highlight=False)
        logs = [self._lakemark] if self._lakemark else []
        servers = self._stack.servers if self._stack else []
        for server in [*logs, *servers]:
            self._console.print(server.log_tail(8), markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _doing(self, step: str) -> Iterator[None]:
        """Show a step while it lasts, and how long it took."""
        self._step = step
        begun = time.monotonic()
        if self._status is not None:
            self._status.update(step)
        self._say(f"{step} …")
        yield
        self._say(f"  done in {time.monotonic() - begun:.1f} s")
        self._step = ""

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}")

    def _note(self, text: str) -> None:
        self._say(f"  {text}")

    def _clean_up(self) -> None:
        """End everything, whatever state it is in."""
        if self._workload is not None:
            with suppress(StackError):
                self._workload.stop(10)
        if self._lakemark is not None:
            with suppress(StackError):
                self._lakemark.stop()
        if self._stack is not None:
            self._stack.stop()

    def remember(self) -> None:
        """Write down what was left running, for `stop`."""
        if self._lakemark is None or self._lakemark.identity is None or self._stack is None:
            return
        identity = self._lakemark.identity
        entry = {"pid": identity.pid, "started": identity.started}
        _lakemark_state().write_text(yaml.safe_dump(entry), encoding="utf-8")


def _batches(lakemark: LakemarkProcess) -> list[tuple[float, int]]:
    """Return the end and the number of events of each batch of lakemark's current run."""
    return [
        (datetime.fromisoformat(event["timestamp"]).timestamp(), int(event.get("events", 0)))
        for event in lakemark.events("batch.done")
    ]


def _comparison(found: Comparison, states: dict[str, dict[str, Any]]) -> Table:
    table = Table(
        title="the lake against the source, row by row",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("table", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("source", "lake", "wrong", "events"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in found.tables:
        state = states.get(one.table, {})
        wrong = one.missing + one.extra + one.different
        counts = (one.source_rows, one.lake_rows, wrong)
        verdict = "[green]equal[/]" if one.is_equal else "[bold red]WRONG[/]"
        events = f"{state.get('events', 0):,}"
        name = str(state.get("state", "streaming" if state else "-"))
        table.add_row(one.table, name, *(f"{n:,}" for n in counts), events, verdict)
    return table


def _short(path: Path) -> str:
    """Return a path as it is typed at the top of the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _lakemark_state() -> Path:
    return ROOT / ".lakemark" / KEPT / "lakemark.pid.yaml"


def stop(say: Any = print) -> int:
    """End what `./dev demo --keep` has left running."""
    with suppress(OSError):
        entry = yaml.safe_load(_lakemark_state().read_text(encoding="utf-8"))
        lakemark = LakemarkProcess(_lakemark_state().with_name("lakemark.yaml"), detached=True)
        lakemark.identity = Identity(entry["pid"], entry["started"])
        if lakemark.is_running:
            say("stopping lakemark")
            lakemark.stop()
        _lakemark_state().unlink(missing_ok=True)
    running = LocalStack.attach(KEPT)
    if running is not None:
        say("stopping PostgreSQL, Kafka and Connect of the last demo")
        running.stop()
    return 0


def run(*, keep: bool) -> int:
    """Run the demo; the exit code is 0 only if all tables are equal.

    Args:
        keep: leave everything running at the end, and say how to stop it.
    """

    def terminated(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, terminated)
    demo = Demo(Console(highlight=False), keep=keep)
    try:
        code = demo.run()
        if keep:
            demo.remember()
        return code
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(stop() if sys.argv[1:] == ["stop"] else run(keep="--keep" in sys.argv[1:]))
