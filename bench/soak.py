"""A soak: lakemark beside a busy shop, while what it needs goes away by dice.

    ./dev bench soak [--minutes N] [--seed N] [--rate N] [--json FILE]

One database, one connector, one pipeline with output topics, both task engines. All the while writers change
the shop, and one fault after another comes (`soak_faults.py`): lakemark, broker, database and Connect
killed, stopped or frozen, full disks, hostile rows, tables, signals and connections, snapshots. The
same seed draws the same faults; how they meet the pipeline is not drawn.

It ends with exit code 0 only if

- every table equals the database's, row by row, and no record became a dead letter;
- what it said was true: each fault that lasts was told by `/readyz` while it lasted, both probes were
  well again after it, and in the end every table streams;
- nothing grows: memory, open files and log in the last third of the time, by the middle third.
"""

import argparse
import math
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import keep, machine
from bench.runs import tree
from bench.soak_faults import FAULTS, Fault, prepare
from stack import shop
from stack.compare import Comparer
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import StackError, wait_for
from stack.small_disk import SmallDisk, small_disk
from stack.workload import Workload

LOOK_S: Final = 5.0  # between two looks at the processes
YOUNG_S: Final = 60.0  # a process this old has loaded and compiled what it runs
CALM_S: Final = (2.0, 8.0)  # before a fault, after everything is well again
LASTS_S: Final = (1.0, 10.0)  # a fault, once it was told
TOLD_S: Final = 90.0  # the connector's session at the brokers may have to time out first
WELL_S: Final = 480.0  # starts of servers and of lakemark on a busy machine are in it
EQUAL_S: Final = 600.0
GROWS_MIN: Final = 30.0  # a shorter soak tells nothing of growth
ROOM: Final = "8g"  # of the lake's disk; memory, and only what is written is taken
GROWTH: Final[dict[str, tuple[float, float]]] = {
    # What is measured: last third by middle third at most, and what may be added to it.
    "resident_mb": (1.25, 100.0),
    "open_files": (1.1, 50.0),
    "log_kb_per_min": (2.0, 200.0),
}
LARGEST: Final = {"resident_mb": 6000.0, "open_files": 2000.0, "log_kb_per_min": 5000.0}
"""At most, at any time after the first minute: far above what a run of this size takes."""

Sample = dict[str, float]


@dataclass(slots=True)
class Verdict:
    """What a soak has found.

    Attributes:
        struck: how often each fault came.
        untrue: what was said, or not said, and was not so.
        different: tables that are not the database's, with how they differ.
        grown: what has grown, with both figures.
        letters: dead letters.
    """

    struck: Counter[str] = field(default_factory=Counter)
    untrue: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    letters: int = 0

    @property
    def is_well(self) -> bool:
        """Whether nothing was found."""
        return not (self.untrue or self.different or self.grown or self.letters)

    def lines(self) -> list[str]:
        """Return what was found, a line each."""
        letters = [f"{self.letters} dead letters"] if self.letters else []
        return [*self.untrue, *self.different, *self.grown, *letters]


class Soak:
    """The pipeline under soak and what it is made of.

    Attributes:
        database: the source with its connector.
        lakemark: the process, whichever runs now.
        disk: where lake and checkpoint are.
        rng: the dice.
        verdict: what was found so far.
        scratch: what a fault holds until it is healed.
    """

    def __init__(
        self, database: Database, disk: SmallDisk, *, seed: int, say: Callable[[str], None]
    ) -> None:
        self.database = database
        self.disk = disk
        self.rng = random.Random(seed)
        self.verdict = Verdict()
        self.scratch = ExitStack()
        self.lakemark = LakemarkProcess(
            write_config(database, disk.folder / "pipeline", settings(database)),
            log=database.stack.logs / "lakemark.log",
        )
        self.say = say

    @property
    def stack(self) -> LocalStack:
        """Broker, Connect and database."""
        return self.database.stack

    def run(self, faults: Sequence[Fault], minutes: float, *, most: float = math.inf) -> None:
        """Let faults come for so many minutes, and so many at most; each is healed before the next."""
        end = time.monotonic() + minutes * 60
        self.lakemark.start()
        self._await_well("the start")
        while time.monotonic() < end and self.verdict.struck.total() < most:
            (fault,) = self.rng.choices(faults, [fault.weight for fault in faults])
            self.calm(CALM_S)
            self.say(fault.name)
            self.verdict.struck[fault.name] += 1
            try:
                fault.strike(self)
                if fault.is_told:
                    self._await_told(fault.name)
                self.calm(LASTS_S)
            finally:
                fault.heal(self)
            self._await_well(fault.name)

    def finish(self) -> None:
        """Find what is not as it must be, after the last write.

        Raises:
            StackError: lakemark or the connector cannot be brought back.
        """
        self.revive()
        comparer = Comparer(
            self.database,
            config=self.lakemark.config,
            tables=self.tables(),
        )
        try:
            comparer.wait_until_equal(self.lakemark, deadline_s=EQUAL_S)
        except StackError:
            found = comparer.compare()
            self.verdict.different += [str(one) for one in found.tables if not one.is_equal]
        self._await_well("the end")
        try:
            wait_for(lambda: not self._unsettled(), EQUAL_S, "all tables to stream")
        except StackError:
            for name, state, reason in self._unsettled():
                self.verdict.untrue.append(f"in the end {name} is {state}: {reason}")
        topic = f"{self.database.name}.dead-letters"
        self.verdict.letters = sum(self.stack.kafka.end_offsets(topic).values())

    def _unsettled(self) -> list[tuple[str, str, str]]:
        """Return the tables that do not stream though they are there: state and reason of each."""
        present = set(self.tables())
        return [
            (table["name"], table["state"], table["reason"])
            for table in self.status()["tables"]
            if table["name"] in present and table["state"] not in {"streaming", "waiting"}
        ]

    def revive(self) -> None:
        """Bring back whatever is away, as an operator would."""
        for server in self.stack.servers:
            server.resume()
            server.start()
        self.database.revive(WELL_S)
        self.lakemark.resume()
        self.lakemark.start()

    def tables(self) -> list[str]:
        """Return the tables of the source that are captured."""
        found = self.database.execute(
            "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = 'public'"
            " AND tablename <> 'debezium_signal' ORDER BY 1"
        )
        return [name for (name,) in found]

    # -- what lakemark says -----------------------------------------------------------------------

    def ask(self, path: str) -> httpx.Response | None:
        """Return the answer of lakemark's HTTP side; None if nobody answers."""
        listening = self.lakemark.events("http.listening")
        try:
            return httpx.get(f"{listening[-1]['address']}{path}", timeout=10) if listening else None
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any]:
        """Return `/v1/status`."""
        answer = self.ask("/v1/status")
        return {} if answer is None else dict(answer.json())

    def _is_well(self) -> bool:
        answers = [self.ask(path) for path in ("/healthz", "/readyz")]
        return all(
            answer is not None and answer.status_code == httpx.codes.OK for answer in answers
        )

    def _await_told(self, what: str) -> None:
        """Note it if `/readyz` goes on to say that all is well."""

        def told() -> bool:
            answer = self.ask("/readyz")
            return answer is None or answer.status_code != httpx.codes.OK

        try:
            wait_for(told, TOLD_S, "/readyz to say so")
        except StackError:
            self.verdict.untrue.append(f"/readyz was 200 for {TOLD_S:g} s of {what}")
            self.say(self.verdict.untrue[-1])

    def _await_well(self, what: str) -> None:
        """Note it, and look after it as an operator would, if it does not become well by itself."""
        try:
            wait_for(self._is_well, WELL_S, "both probes to be well")
        except StackError:
            answers = [self.ask(path) for path in ("/healthz", "/readyz")]
            texts = [answer.text[:600] if answer is not None else "no answer" for answer in answers]
            self.verdict.untrue.append(f"not well {WELL_S:g} s after {what}: {'; '.join(texts)}")
            self.say(self.verdict.untrue[-1])
            self.revive()

    def calm(self, between: tuple[float, float]) -> None:
        """Let a time pass that is drawn from between two, in seconds."""
        time.sleep(self.rng.uniform(*between))  # what is waited for here is time itself


def settings(database: Database) -> dict[str, Any]:
    """Return the pipeline's settings: small batches, both task engines, output topics."""
    vectors = shop.tables(database)[::2]
    return {
        "stream": {"trigger": "1s", "shards": 2},
        "lake": {
            "path": "./lake",
            "tables": {table: {"engine": "deletion-vectors"} for table in vectors},
        },
        "snapshot": {"chunk_rows": 500, "window_interval": "200ms"},
        "output": {"topic_prefix": f"{database.name}.clean"},
        "spark": {"spark.driver.memory": "1g"},
    }


class Watch(threading.Thread):
    """Looks at lakemark's processes and its log until it is stopped."""

    def __init__(self, lakemark: LakemarkProcess) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._lakemark = lakemark
        self._stopping = threading.Event()

    def run(self) -> None:
        """Take samples; see `LOOK_S`."""
        begun, logged = time.monotonic(), self._logged()
        since: dict[int, float] = {}
        while not self._stopping.wait(LOOK_S):
            now, size, identity = time.monotonic(), self._logged(), self._lakemark.identity
            sample = {"seconds": now - begun, "log_kb_per_min": (size - logged) / LOOK_S * 0.06}
            logged = size
            if identity is not None and (family := tree(identity.pid)):
                born = since.setdefault(identity.pid, now)
                if now - born >= YOUNG_S:
                    sample["resident_mb"] = sum(rss for rss, _ in family.values()) / 1e6
                    sample["open_files"] = float(sum(map(open_files, family)))
            self.samples.append(sample)

    def stop(self) -> list[Sample]:
        """Stop, and return what was seen."""
        self._stopping.set()
        self.join()
        return self.samples

    def _logged(self) -> int:
        try:
            return self._lakemark.log.stat().st_size
        except OSError:
            return 0


def open_files(pid: int) -> int:
    """Return how many files a process has open; 0 if it has ended or is not ours."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def thirds(samples: Sequence[Sample], measure: str) -> tuple[float, float] | None:
    """Return the medians of the middle and of the last third; None with fewer than six values."""
    values = [sample[measure] for sample in samples if measure in sample]
    third = len(values) // 3
    if third < 2:
        return None
    return statistics.median(values[third : 2 * third]), statistics.median(values[2 * third :])


def grown(samples: Sequence[Sample], *, grows: bool = True) -> list[str]:
    """Return what has grown, or was larger than it may ever be; empty if nothing.

    Args:
        samples: of the whole time.
        grows: whether that was long enough for its thirds to be compared: a process opens and loads
            more and more for minutes, as its tables get their first events.
    """
    found = []
    for measure, (times, more) in GROWTH.items():
        medians = thirds(samples, measure) if grows else None
        if medians is not None and medians[1] > medians[0] * times + more:
            middle, last = medians
            found.append(
                f"{measure} has grown: {middle:,.0f} in the middle, {last:,.0f} at the end"
            )
        largest = (
            statistics.median(v) if (v := [s[measure] for s in samples if measure in s]) else 0
        )
        if largest > LARGEST[measure]:
            found.append(f"{measure} is {largest:,.0f}, more than {LARGEST[measure]:,.0f}")
    return found


def soak(
    *,
    minutes: float,
    seed: int,
    rate: float,
    say: Callable[[str], None],
    most: float = math.inf,
    servers: LocalStack | None = None,
) -> tuple[Verdict, list[Sample]]:
    """Run a soak and return what it has found.

    Args:
        minutes: how long faults come; the start and the comparison at the end are not in it.
        seed: of the dice.
        rate: rows that writers change in a second.
        say: told what happens, in a few words.
        most: so many faults at most, for who wants no whole soak.
        servers: those that run already, brought back after each fault; else some of its own.

    Raises:
        StackError: a server or lakemark could not be started or brought back.
    """
    own = LocalStack(name="soak", quick=minutes < 15, progress=say) if servers is None else None
    with (
        own or nullcontext(servers) as stack,
        small_disk(stack.directory / "disk", room=ROOM) as disk,
        stack.fresh_database() as database,
    ):
        shop.create(database)
        shop.fill(database, scale=0.02)
        prepare(database)
        database.start_connector({"publication.autocreate.mode": "all_tables"})
        running = Soak(database, disk, seed=seed, say=say)
        watch = Watch(running.lakemark)
        try:
            with running.scratch, Workload(database, writers=2, rows_per_s=rate, seed=seed):
                watch.start()
                faults = [f for f in FAULTS if disk.mounted or "disk" not in f.name]
                running.run(faults, minutes, most=most)
            running.finish()
        finally:
            samples = watch.stop() if watch.is_alive() else watch.samples
            running.lakemark.kill()
        running.verdict.grown += grown(samples, grows=minutes >= GROWS_MIN)
        return running.verdict, samples


def main(argv: list[str]) -> int:
    """Run the soak; 1 if anything was found."""
    options = parse(argv)
    before = machine()
    verdict, samples = soak(minutes=options.minutes, seed=options.seed, rate=options.rate, say=say)
    console = Console() if Console().is_terminal else Console(width=100)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "middle third", "last third", "largest"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = []
    for measure in GROWTH:
        values = [sample[measure] for sample in samples if measure in sample]
        middle, last = thirds(samples, measure) or (None, None)
        rows.append(
            {"who": measure, "middle": middle, "last": last, "largest": max(values, default=None)}
        )
        cells = [rows[-1][name] for name in ("middle", "last", "largest")]
        table.add_row(measure, *("" if cell is None else f"{cell:,.0f}" for cell in cells))
    console.print(table)
    console.print(", ".join(f"{name} {count}" for name, count in verdict.struck.most_common()))
    for line in verdict.lines():
        console.print(line, style="red", markup=False, highlight=False)
    console.print(
        "[bold]well: equal tables, true states, nothing grows[/]"
        if verdict.is_well
        else "[bold red]FAILED[/]"
    )
    if options.json:
        chosen = {"minutes": options.minutes, "seed": options.seed, "rate": options.rate}
        keep(options.json, "soak", chosen, before, rows,
             faults=dict(verdict.struck), found=verdict.lines())  # fmt: skip
    return 0 if verdict.is_well else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="./dev bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the dice")
    parser.add_argument("--rate", type=float, default=200, help="rows a second that writers change")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """Print one line of progress with the time of day."""
    print(f"soak {time.strftime('%H:%M:%S')}: {text}", file=sys.stderr, flush=True)
