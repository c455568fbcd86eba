"""`./dev demo`: a shop's database, Kafka, Debezium, lakemark and a lake, on this machine.

    1. start the database, Kafka and Connect
    2. create the shop and fill it
    3. start the connector, which takes no snapshot
    4. start `lakemark run`: the lake is empty
    5. change the shop and, meanwhile, load its tables by a snapshot that is paused, resumed,
       interrupted by kill -9 and goes on (`stack.demo_load`)
    6. stop writing, let lakemark catch up, compare every row of every table

Everything of a run is below `.lakemark/demo-<pid>/` (`.lakemark/demo/` with --keep). What was
started is ended however the demo ends; lake and logs stay.
"""

import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import yaml
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax

from lakemark.converters.registry import AVRO, JSON
from lakemark.errors import LakemarkError
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack import shop
from stack.avro import avro_settings
from stack.compare import Comparer, Comparison
from stack.database import Database
from stack.demo_load import PULSE, Load, create_pulse
from stack.demo_view import Measured, Screen, comparison, facts
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import ROOT, LocalStack
from stack.mysql import MySqlDatabase
from stack.postgres import PostgresDatabase
from stack.processes import Identity, StackError

CATCH_UP_S: Final = 900.0
"""Deadline for the tables to be equal; a busy machine needs a minute."""
KEPT: Final = "demo"
FORMATS: Final = (JSON, AVRO)
"""Forms of the connector's records."""
CLIENT_ERRORS: Final = (PostgresDatabase.CLIENT_ERROR, MySqlDatabase.CLIENT_ERROR)


class Demo:
    """One run of the demo.

    Args:
        console: where it is shown.
        service: the database, one of `stack.local.DATABASES`.
        form: of the records, one of `FORMATS`.
        keep: leave everything running at the end.
        scale: how large the shop is; 1 is 65,000 rows.
    """

    def __init__(
        self,
        console: Console,
        *,
        service: str = "postgres",
        form: str = JSON,
        keep: bool,
        scale: float = 1.0,
    ) -> None:
        self._screen = Screen(console)
        self._service = service
        self._form = form
        self._keep = keep
        self._scale = scale
        self._stack: LocalStack | None = None
        self._database: Database | None = None
        self._lakemark: LakemarkProcess | None = None
        self._load: Load | None = None
        self._seen = Measured()

    def run(self) -> int:
        """Run it and return the exit code: 0 only if all tables are equal."""
        kept = False
        with self._screen:
            try:
                equal = self._run()
                kept = self._keep
            except (StackError, LakemarkError, *CLIENT_ERRORS, OSError) as error:
                self._explain(error)
                equal = False
            finally:
                if not kept:
                    self._clean_up()
        self._screen.say(f"[bold]{'all tables are equal' if equal else 'FAILED'}[/]")
        return 0 if equal else 1

    def _run(self) -> bool:
        stack = self._start_stack()
        database = self._fill(stack)
        with self._screen.doing("starting the connector (snapshot.mode=no_data)"):
            database.start_connector({"snapshot.mode": "no_data", **self._records(stack)})
        config = self._configure(database)
        lakemark = self._lakemark = LakemarkProcess(
            config, log=stack.logs / "lakemark.log", detached=self._keep
        )
        with self._screen.doing("starting lakemark (Spark takes most of it)"):
            lakemark.start()
        self._load = Load(database, lakemark, self._screen, self._seen, scale=self._scale)
        self._load.run()
        found = self._catch_up(database, lakemark)
        self._report(found, lakemark)
        return found.is_equal

    # -- steps ------------------------------------------------------------------------------------

    def _start_stack(self) -> LocalStack:
        if self._keep:
            stop(self._screen.say)
            shutil.rmtree(ROOT / ".lakemark" / KEPT, ignore_errors=True)
        registry = ("registry",) if self._form == AVRO else ()
        services = ("kafka", *registry, "connect", self._service)
        stack = LocalStack(name=KEPT, services=services, detached=self._keep, progress=self._note)
        with self._screen.doing(f"starting {stack.servers[-1].name}, Kafka and Connect"):
            stack.start()
        self._stack = stack
        return stack

    def _fill(self, stack: LocalStack) -> Database:
        with self._screen.doing("creating the shop"):
            database = self._database = stack.fresh_database(name="shop")
            create_pulse(database)
            shop.create(database)
            rows = shop.fill(database, scale=self._scale)
        self._screen.say(f"  {rows:,} rows in {len(shop.TABLES)} tables")
        return database

    def _configure(self, database: Database) -> Path:
        assert self._stack is not None
        sections = {"name": "demo", "source": self._source(database)}
        config = write_config(database, self._stack.directory, sections)
        self._screen.say(f"lakemark's configuration, {_short(config)}:")
        self._screen.console.print(Syntax(config.read_text(encoding="utf-8"), "yaml"))
        return config

    def _source(self, database: Database) -> dict[str, Any]:
        """Return the section `source`: a changed table is to be noticed while somebody looks on."""
        assert self._stack is not None
        connect = {"url": self._stack.connect.url, "connector": database.name}
        found: dict[str, Any] = {"connect": connect, "watch_interval": "5s"}
        if self._form == AVRO:  # this registry is gone with the demo, and so are its schemas
            found["converter"] = {"registry.folder": str(self._stack.directory / "schemas")}
        return found

    def _records(self, stack: LocalStack) -> dict[str, str]:
        """Return the connector's settings for the form of its records."""
        if self._form == JSON:
            return {}
        return {**avro_settings(stack.registry.url), "column.propagate.source.type": ".*"}

    def _catch_up(self, database: Database, lakemark: LakemarkProcess) -> Comparison:
        comparer = Comparer(
            database,
            config=lakemark.config,
            tables=[*shop.tables(database), database.identifier(PULSE)],
        )
        try:
            with self._screen.doing("catching up and comparing every row"):
                return comparer.wait_until_equal(lakemark, deadline_s=CATCH_UP_S)
        except StackError as error:
            self._explain(error)
            return comparer.compare()
        finally:
            self._seen.see(lakemark.events("batch.done"))

    # -- what is shown ----------------------------------------------------------------------------

    def _report(self, found: Comparison, lakemark: LakemarkProcess) -> None:
        assert self._load is not None
        states = lakemark.progress() if lakemark.is_running else {}
        self._screen.console.print(comparison(found, states))
        self._screen.console.print(facts(self._seen, self._load.workload.written))
        self._where_next(lakemark)

    def _where_next(self, lakemark: LakemarkProcess) -> None:
        assert self._stack is not None
        assert self._database is not None
        config, orders = _short(lakemark.config), self._database.identifier("orders")
        lake = Path(folder_of(load(lakemark.config).lake, orders))
        query = (
            "from deltalake import DeltaTable; "
            f'print(DeltaTable("{_short(lake)}").to_pandas().head())'
        )
        lines = [
            f"lake     {_short(lake.parents[1])}",
            f"logs     {_short(self._stack.logs)}",
            f"config   {config}",
            "",
            "query with delta-rs:",
            f"  .venv/bin/python -c '{query}'",
        ]
        if self._keep:
            lines += [
                *(f"page       {e['address']}" for e in lakemark.events("http.listening")[-1:]),
                "",
                "ask lakemark:",
                f"  .venv/bin/lakemark status -c {config}",
                "load a table again, or a part of it, and see what came of it:",
                f"  .venv/bin/lakemark snapshot start {orders} --wait -c {config}",
                f"  .venv/bin/lakemark snapshot status -c {config}",
                f"database   {self._database.dsn}",
                f"Kafka      {self._stack.kafka.bootstrap}",
                f"Connect    {self._stack.connect.url}",
                *([f"registry   {self._stack.registry.address}"] if self._form == AVRO else []),
                "",
                "everything is still running; stop it with:",
                "  .venv/bin/python -m stack.demo stop",
            ]
        self._screen.console.print(
            Panel("\n".join(lines), title="where to look next", expand=False)
        )

    def _explain(self, error: Exception) -> None:
        """What failed, why, what to do, and the end of each log."""
        lines = [f"[bold]what[/]  {self._screen.step or 'the demo'}"]
        hint = getattr(error, "hint", "") or (
            "read the log below; ./dev demo can simply be run again"
        )
        self._screen.console.print(
            Panel("\n".join(lines), title="failed", style="red", expand=False)
        )
        self._screen.console.print(f"why   {error}", markup=False, highlight=False)
        self._screen.console.print(f"do    {hint}", markup=False, highlight=False)
        logs = [self._lakemark] if self._lakemark else []
        servers = self._stack.servers if self._stack else []
        for server in [*logs, *servers]:
            self._screen.console.print(
                server.log_tail(8), markup=False, highlight=False, soft_wrap=True
            )

    def _note(self, text: str) -> None:
        self._screen.say(f"  {text}")

    def _clean_up(self) -> None:
        """End everything, whatever state it is in."""
        if self._load is not None:
            with suppress(StackError):
                self._load.workload.stop(10)
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
        say("stopping the database, Kafka and Connect of the last demo")
        running.stop()
    return 0


def run(*, keep: bool, scale: float = 1.0, database: str = "postgres", form: str = JSON) -> int:
    """Run the demo; the exit code is 0 only if all tables are equal.

    Args:
        keep: leave everything running at the end, and say how to stop it.
        scale: how large the shop is.
        database: one of `stack.local.DATABASES`.
        form: of the records, one of `FORMATS`.
    """

    def terminated(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, terminated)
    demo = Demo(Console(highlight=False), service=database, form=form, keep=keep, scale=scale)
    try:
        code = demo.run()
        if keep:
            demo.remember()
        return code
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(stop() if sys.argv[1:] == ["stop"] else run(keep="--keep" in sys.argv[1:]))
