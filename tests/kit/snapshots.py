"""Snapshots under test: signals to a pipeline, and what its topics say has become of them."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Message

from lakemark.settings.config import load
from lakemark.snapshot import notifications, runs
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.runs import Chunk, Run
from lakemark.state.progress import PAGE_PREFIX
from stack.local import Database
from stack.processes import StackError, wait_for
from tests.kit.running import Running

NOTE_S = 480.0
"""Within this a snapshot of a few thousand rows has ended, also on a loaded machine."""

SLOW = "1m"
"""Delay of a run that is to read its first chunk only, until `hasten`.

Long enough for whatever a test does before the last chunk, and not for a chunk that must be read again.
"""

LAST = ("COMPLETED", "ABORTED", "REJECTED")
# Small chunks and short windows: many of both in a short run.
SNAPSHOT: dict[str, Any] = {
    "snapshot": {"chunk_rows": 100, "parallelism": 4, "window_interval": "100ms"},
    "stream": {"trigger": "500ms", "shards": 2},
}

Data = dict[str, Any]


@dataclass
class Snapshots:
    """Sends signals to a pipeline and follows its topics."""

    running: Running
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        kafka = self.running.database.stack.kafka
        config = load(self.running.lakemark.config)
        self.pipeline = config.name
        self.names = config.topics
        self.notifications = kafka.reader(self.names.notifications)
        self.control = kafka.reader(self.names.control)
        self.chunks = kafka.reader(self.names.chunks)
        self.progress = kafka.reader(self.names.progress)
        self._producer = kafka.producer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for topic in (self.notifications, self.control, self.chunks, self.progress):
            topic.close()

    # -- signals ----------------------------------------------------------------------------------

    def send(self, kind: str, data: Mapping[str, Any] | None = None, *, name: str = "") -> str:
        """Send a signal and return its id."""
        name = name or f"s{next(self._numbers)}"
        value = {"id": name, "type": kind, "data": dict(data or {})}
        self.send_raw(json.dumps(value).encode())
        return name

    def send_raw(self, value: bytes, key: bytes | None = None) -> None:
        """Send bytes to the signals topic, under the pipeline's name unless told otherwise."""
        self._producer.produce(self.names.signals, value, key or self.pipeline.encode())
        assert self._producer.flush(30) == 0

    def start(self, *tables: str, name: str = "", **data: Any) -> str:
        """Ask for a snapshot; details with `_` for `-`."""
        details = {field.replace("_", "-"): value for field, value in data.items()}
        return self.send(
            "execute-snapshot", {"data-collections": list(tables), **details}, name=name
        )

    def run(self, *tables: str, **data: Any) -> str:
        """Ask for a snapshot and wait until it has completed."""
        name = self.start(*tables, **data)
        self.completed(name)
        return name

    def hasten(self, run: str) -> None:
        """Let a run read its next chunks at once, whatever its delay was."""
        self.send("set-snapshot", {"id": run, "delay": "0s"})

    # -- what is said -----------------------------------------------------------------------------

    def notes(self, name: str = "") -> list[Notification]:
        """All notifications so far, or those under one id, in order."""
        found = [notifications.read(record.value()) for record in self.notifications.records()]
        return [note for note in found if note is not None and name in {"", note.id}]

    def wait_note(
        self,
        name: str,
        *kinds: str,
        count: int = 1,
        where: Callable[[Data], bool] = lambda _: True,
        deadline_s: float = NOTE_S,
    ) -> Notification:
        """Return the count-th notification of these kinds under an id.

        Raises:
            StackError: it did not come in time; the message says what came and lakemark's log.
        """

        def found() -> list[Notification]:
            hits = [n for n in self.notes(name) if n.type in kinds and where(n.additional_data)]
            return hits[count - 1 :]

        try:
            return wait_for(found, deadline_s, f"{' or '.join(kinds)} of {name}")[0]
        except StackError as error:
            said = "\n".join(f"{n.type} {n.additional_data}" for n in self.notes(name))
            tail = self.running.lakemark.log_tail(30)
            raise StackError(f"{error}; said was:\n{said}\n{tail}") from error

    def ended(self, name: str, *, deadline_s: float = NOTE_S) -> Notification:
        """Return the last notification of a run: completed, aborted or rejected."""
        return self.wait_note(name, *LAST, deadline_s=deadline_s)

    def completed(self, name: str, *, deadline_s: float = NOTE_S) -> Data:
        """Require that a run ends well and return what its last notification says."""
        last = self.ended(name, deadline_s=deadline_s)
        assert last.type == "COMPLETED", (last, self.running.lakemark.log_tail(20))
        return last.additional_data

    def rejected(self, name: str) -> Data:
        """Require that a signal is rejected and return what is said about it."""
        last = self.ended(name)
        assert last.type == "REJECTED", last
        assert last.additional_data["hint"]
        return last.additional_data

    def scans(self, name: str) -> dict[str, list[Data]]:
        """What TABLE_SCAN_COMPLETED said, by table."""
        found: dict[str, list[Data]] = defaultdict(list)
        for note in self.notes(name):
            if note.type == "TABLE_SCAN_COMPLETED":
                found[note.additional_data["scanned_collection"]].append(note.additional_data)
        return dict(found)

    # -- what is done -----------------------------------------------------------------------------

    def commands(self, kind: str, run: str = "") -> list[Data]:
        """Control records of a kind, all or those of one run."""
        found = [json.loads(record.value() or b"{}") for record in self.control.records()]
        return [r for r in found if r.get("type") == kind and run in {"", r.get("run")}]

    def wait_disarmed(self, run: str) -> None:
        """Wait until the shards are told of a run's end, which is said after all else; only once."""
        wait_for(lambda: self.commands("run-end", run), NOTE_S, f"the end of {run}")
        assert len(self.commands("run-end", run)) == 1

    def reads(self, run: str, table: str) -> dict[int, set[int]]:
        """Attempts whose rows have come to the chunks topic, by chunk."""
        found: dict[int, set[int]] = defaultdict(set)
        for record in self.chunks.records():
            key = json.loads(record.key() or b"{}")
            if (key["run"], key["table"]) == (run, table):
                found[key["chunk"]].add(key["attempt"])
        return dict(found)

    def kept(self) -> dict[str, tuple[Run, dict[str, list[Chunk]]]]:
        """Runs and chunks as the progress topic has them now, by the run's id."""
        newest: dict[bytes, bytes] = {}
        for record in self.progress.records():
            _take(newest, record)
        return {run.id: (run, chunks) for run, chunks in runs.loaded(newest)}

    def wait_kept(self, run: str, what: str, holds: Callable[[Run], bool]) -> None:
        """Wait until this is true of a run as it is kept: what was said before is not said again."""

        def found() -> bool:
            kept = self.kept()
            return run in kept and holds(kept[run][0])

        wait_for(found, NOTE_S, f"{run} to be kept as {what}")

    def settled(self, run: str, table: str) -> set[int]:
        """Numbers of a table's chunks that are kept as done; empty again when the table is."""
        _, chunks = self.kept().get(run, (None, {}))
        return _done(chunks, table)

    def wait_settled(self, run: str, table: str, count: int) -> set[int]:
        """Wait until so many chunks of a table are, or were for a moment, kept as done.

        Raises:
            StackError: they were not in time, or never before the run's end.
        """
        mine: dict[bytes, bytes] = {}
        looked = 0

        def enough() -> set[int]:
            nonlocal looked
            records = self.progress.records()
            for record in records[looked:]:
                looked += 1
                if not _is_of(run, record.key() or b""):
                    continue
                _take(mine, record)
                for now, chunks in runs.loaded(mine):
                    found = _done(chunks, table)
                    if len(found) >= count:
                        return found
                    if now.over:
                        raise StackError(f"{run} has ended before {count} chunks were settled")
            return set()

        return wait_for(enough, NOTE_S, f"{count} settled chunks of {table}")


def _take(newest: dict[bytes, bytes], record: Message) -> None:
    key, value = record.key() or b"", record.value()
    newest.pop(key, None)
    if value is not None:
        newest[key] = value


def _is_of(run: str, key: bytes) -> bool:
    if key.startswith(PAGE_PREFIX):
        return bool(json.loads(key.removeprefix(PAGE_PREFIX))[0] == run)
    return key == runs.run_key(run)


def _done(chunks: Mapping[str, list[Chunk]], table: str) -> set[int]:
    return {number for number, chunk in enumerate(chunks.get(table, [])) if chunk.done}


@contextmanager
def windows_held_open(database: Database) -> Iterator[None]:
    """No window is closed before the block ends."""
    database.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$"
    )
    with database.connect() as gate:
        gate.execute("SELECT pg_advisory_lock(7)")
        database.execute(
            "CREATE TRIGGER hold BEFORE INSERT ON debezium_signal FOR EACH ROW"
            " WHEN (NEW.type = 'snapshot-window-close') EXECUTE FUNCTION hold()"
        )
        yield
    database.execute("DROP FUNCTION hold CASCADE")


def kinds(notes: Iterable[Notification]) -> list[str]:
    """Their types, those that come several times in a row once."""
    return [kind for kind, _ in itertools.groupby(note.type for note in notes)]
