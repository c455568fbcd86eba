"""The place in the log that MariaDB tells for a consistent snapshot, under attack.

Writers commit one change after the other while chunks are read, and the log is rotated. Each
transaction's place is then looked up in the log itself: every chunk must hold the transactions
before its place, and no other. What else a server says of its position is asked at the same time:
it is ahead of what a read sees.
"""

import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from lakemark.connectors.mysql.chunk_reader import MariaDbReader
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.connectors.mysql.positions import number_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig

pytestmark = pytest.mark.integration

WRITERS = 6
SECONDS = 2.0
OTHERS = 10  # reads of other kinds for each chunk
SPREAD = 20_000  # changes among which every writer has one
ROTATED = 5  # chunks for each file of the log
TABLE = "attacked.counters"
CREATE = "CREATE TABLE attacked.counters (w int PRIMARY KEY, n int NOT NULL, filling varchar(90))"
ROW = re.compile(r"SET n = (\d+) WHERE w = (\d+)")
GTID = re.compile(r"GTID \d+-\d+-(\d+)")
Counts = dict[int, int]
Where = tuple[int, int]


@dataclass
class Read:
    """What a chunk saw, by writer, and where it says that it stands in the log."""

    seen: Counts
    place: BinlogPlace


@dataclass
class Bounded:
    """What a SELECT saw, by writer, and what the server said of its position just before."""

    seen: Counts
    status: Where | None
    gtid: int | None


@dataclass
class Log:
    """All changes of the log: where their transactions begin, their number, writer and count."""

    changes: list[tuple[Where, int, int, int]] = field(default_factory=list)

    def before(self, where: Where) -> Counts:
        """The counts of the transactions that begin before a place."""
        return self._first(bisect_left(self.changes, where, key=lambda change: change[0]))

    def upto(self, gtid: int) -> Counts:
        """The counts of the transactions up to a number."""
        return self._first(bisect_right(self.changes, gtid, key=lambda change: change[1]))

    def _first(self, count: int) -> Counts:
        found = dict.fromkeys(range(WRITERS), 0)
        for _, _, w, n in reversed(self.changes[max(0, count - SPREAD) : count]):
            found[w] = max(found[w], n)
        return found


@contextmanager
def writers(config: DatabaseConfig) -> Iterator[None]:
    """Count up, each its own row; the next only when the last one is committed."""
    stop, failed = threading.Event(), []

    def write(w: int) -> None:
        try:
            with connect(config, name="writer") as session:
                n = 0
                while not stop.is_set():
                    n += 1
                    session.raw.query(f"UPDATE attacked.counters SET n = {n} WHERE w = {w}")
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failed == []


def prepare(session: Session) -> int:
    """Make the table anew; return the log file that all changes are in or after."""
    session.execute("DROP DATABASE IF EXISTS attacked")
    session.execute("CREATE DATABASE attacked")
    session.execute(CREATE)
    for w in range(WRITERS):
        session.execute("INSERT INTO attacked.counters VALUES (%s, 0, '')", [w])
    session.execute("FLUSH BINARY LOGS")
    return end_of_log(session)[0]


def end_of_log(session: Session) -> Where:
    ((file, pos, *_),) = session.execute("SHOW MASTER STATUS")
    return number_of(file), int(pos)


def bounded(session: Session, *, by_gtid: bool) -> Bounded:
    """Read the table by a plain SELECT, right after the question for the server's position."""
    status = gtid = None
    if by_gtid:
        ((text,),) = session.execute("SELECT @@gtid_binlog_pos")
        gtid = int(text.rpartition("-")[2])
    else:
        status = end_of_log(session)
    seen = dict(session.execute("SELECT w, n FROM attacked.counters"))
    return Bounded(seen, status, gtid)


def reads(config: DatabaseConfig, seconds: float) -> tuple[list[Read], list[Bounded]]:
    """Read the table, as a chunk and otherwise, again and again."""
    found: list[Read] = []
    others: list[Bounded] = []
    reader = MariaDbReader(DatabaseAccess(config, HandlingModes(), {}))
    with connect(config, name="asking") as asking:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chunk = reader.read(TABLE).found
            seen = {row["w"]: row["n"] for row in chunk.rows.to_pylist()}
            found.append(Read(seen, chunk.proof))
            others += [bounded(asking, by_gtid=bool(turn % 2)) for turn in range(OTHERS)]
            if len(found) % ROTATED == 0:
                asking.execute("FLUSH BINARY LOGS")
    reader.close()
    return found, others


def log_of(session: Session, first: int) -> Log:
    """Read the log, from a file on: the statements stand beside the rows."""
    log = Log()
    for name, *_ in session.execute("SHOW BINARY LOGS"):
        file = number_of(name)
        if file < first:
            continue
        begin, number = (file, 0), 0
        for _, pos, kind, _, _, info in session.execute("SHOW BINLOG EVENTS IN %s", [name]):
            if kind == "Gtid":
                begin, number = (file, int(pos)), int(GTID.search(info)[1])
            elif kind == "Annotate_rows" and (match := ROW.search(info)):
                log.changes.append((begin, number, int(match[2]), int(match[1])))
    return log


def missed(seen: Counts, promised: Counts) -> int:
    """How many of the changes that were promised a read has not seen."""
    return sum(max(0, n - seen[w]) for w, n in promised.items())


def beyond(seen: Counts, promised: Counts) -> int:
    """How many changes a read has seen beside those that were promised."""
    return sum(max(0, n - promised.get(w, 0)) for w, n in seen.items())


def attack(config: DatabaseConfig, seconds: float) -> Mapping[str, int]:
    """Figures of one attack: reads, changes, and by bound the reads that it was wrong of."""
    with connect(config) as session:
        first = prepare(session)
        with writers(config):
            found, others = reads(config, seconds)
        log = log_of(session, first)
    assert [n for _, _, w, n in log.changes if w == 0] == sorted(
        n for _, _, w, n in log.changes if w == 0
    )
    chunks = [(r.seen, log.before((r.place.file, r.place.pos))) for r in found]
    status = [(r.seen, log.before(r.status)) for r in others if r.status is not None]
    gtid = [(r.seen, log.upto(r.gtid)) for r in others if r.gtid is not None]
    return {
        "chunks": len(chunks),
        "changes": len(log.changes),
        "files": len({at[0] for at, *_ in log.changes}),
        "inside": sum(0 < sum(seen.values()) < len(log.changes) for seen, _ in chunks),
        "missed": wrong(missed, chunks),
        "beyond": wrong(beyond, chunks),
        "status": len(status),
        "status missed": wrong(missed, status),
        "gtid": len(gtid),
        "gtid missed": wrong(missed, gtid),
    }


def wrong(count: Callable[[Counts, Counts], int], of: Sequence[tuple[Counts, Counts]]) -> int:
    """How many reads were not what a bound promised."""
    return sum(count(seen, promised) > 0 for seen, promised in of)


@pytest.mark.parametrize("sync", [0, 1])
def test_a_chunk_holds_the_transactions_before_its_place_and_no_other(
    mariadb: DatabaseConfig, sync: int
):
    with connect(mariadb) as session:
        session.execute("SET GLOBAL sync_binlog = %s", [sync])
        session.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED")  # not ours
    found = attack(mariadb, SECONDS)
    assert found["inside"] > 10, found
    assert found["files"] > 1, found
    assert (found["missed"], found["beyond"]) == (0, 0), found
    if sync:  # what the server says of its GTID is ahead of what a read sees
        assert found["gtid missed"] > 0, found
