"""The place in the log that a read of MariaDB or MySQL has, under attack.

Writers commit one change after the other while chunks are read, and the log is rotated. Each
transaction's place is then looked up in the log itself: every chunk must hold all that stands
before its place, and only what stands before the log's end afterwards. At the same time others ask
where the log ends and read at once: they miss what is in the log and not yet to be seen.
"""

import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.mysql import binlog_snapshot
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from lakemark.connectors.mysql.chunk_reader import MySqlReader
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.connectors.mysql.positions import number_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from stack.mysql import LocalBinlogServer
from stack.processes import wait_for

pytestmark = pytest.mark.integration

WRITERS = 6
OF_XA = 3  # one writer of so many prepares its transactions, where they do
SECONDS = 2.0
FEWEST = 12  # chunks, on a machine that has much else to do
ATTACKS = 5  # at most, until a read at once has missed something
OTHERS = 5  # reads at once for each chunk
SPREAD = 20_000  # changes among which every writer has one
ROTATED = 5  # chunks for each file of the log
TABLE = "attacked.counters"
CREATE = "CREATE TABLE attacked.counters (w int PRIMARY KEY, n int NOT NULL, filling varchar(90))"
ROW = re.compile(r"SET n = (\d+) WHERE w = (\d+)")
STATEMENTS = {"Annotate_rows", "Rows_query"}
"""The kinds of entries that have the statement beside its rows."""
Counts = dict[int, int]
Where = tuple[int, int]


@dataclass
class Read:
    """What was seen, by writer, where the read says that it stands, and where the log ended."""

    seen: Counts
    place: BinlogPlace
    after: BinlogPlace


@dataclass
class Log:
    """All changes of the log: where their transactions begin, writer and count."""

    changes: list[tuple[Where, int, int]] = field(default_factory=list)

    def before(self, place: BinlogPlace) -> Counts:
        """The counts of the transactions that begin before a place."""
        count = bisect_left(self.changes, (place.file, place.pos), key=lambda change: change[0])
        found = dict.fromkeys(range(WRITERS), 0)
        for _, w, n in self.changes[max(0, count - SPREAD) : count]:
            found[w] = max(found[w], n)
        return found

    def missed(self, reads: list[Read]) -> int:
        """How many reads have not seen a change before their place."""
        return sum(any(r.seen[w] < n for w, n in self.before(r.place).items()) for r in reads)

    def beyond(self, reads: list[Read]) -> int:
        """How many reads have seen a change behind the log's end after them."""
        return sum(any(r.seen[w] > n for w, n in self.before(r.after).items()) for r in reads)


def write(session: Session, w: int, n: int, *, prepares: bool) -> None:
    change = f"UPDATE attacked.counters SET n = {n} WHERE w = {w}"
    statements = [change]
    if prepares:
        name = f"'{w}-{n}'"
        phases = f"XA END {name}", f"XA PREPARE {name}", f"XA COMMIT {name}"
        statements = [f"XA START {name}", change, *phases]
    for statement in statements:
        session.raw.query(statement)


@contextmanager
def writers(config: DatabaseConfig, *, xa: bool) -> Iterator[None]:
    """Count up, each its own row; the next only when the last one is committed."""
    stop, failed = threading.Event(), []

    def count(w: int) -> None:
        try:
            with connect(config, name="writer") as session:
                n = 0
                while not stop.is_set():
                    n += 1
                    write(session, w, n, prepares=xa and w % OF_XA == 0)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=count, args=(w,)) for w in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failed == []


def config_of(server: LocalBinlogServer) -> DatabaseConfig:
    return DatabaseConfig(url=f"{server.dsn()}?ssl-mode=disabled")


def counted(session: Session) -> int:
    """How many rows the table has; 0 where it is not there yet."""
    try:
        ((count,),) = session.execute("SELECT count(*) FROM attacked.counters WHERE n = 0")
    except pymysql.MySQLError:
        return 0
    return int(count)


def prepare(session: Session) -> None:
    """Make the table anew."""
    session.execute("DROP DATABASE IF EXISTS attacked")
    session.execute("CREATE DATABASE attacked")
    session.execute(CREATE)
    for w in range(WRITERS):
        session.execute("INSERT INTO attacked.counters VALUES (%s, 0, '')", [w])


def at_once(session: Session) -> Read:
    """Read the table right after the question where the log ends."""
    place = binlog_snapshot.log_end(session)
    seen = dict(session.execute("SELECT w, n FROM attacked.counters"))
    return Read(seen, place, place)


def reads(config: DatabaseConfig) -> tuple[list[Read], list[Read]]:
    """Read the table, as a chunk and at once, again and again."""
    chunks: list[Read] = []
    others: list[Read] = []
    reader = MySqlReader(DatabaseAccess(config, HandlingModes(), {}))
    with connect(config, name="asking") as asking:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(chunks) < FEWEST:
            chunk = reader.read(TABLE).found
            seen = {row["w"]: row["n"] for row in chunk.rows.to_pylist()}
            chunks.append(Read(seen, chunk.proof, binlog_snapshot.log_end(asking)))
            others += [at_once(asking) for _ in range(OTHERS)]
            if len(chunks) % ROTATED == 0:
                asking.execute("FLUSH BINARY LOGS")
    reader.close()
    return chunks, others


def log_of(session: Session, first: int) -> Log:
    """Read the log, from a file on: the statements stand beside the rows."""
    log = Log()
    for name, *_ in session.execute("SHOW BINARY LOGS"):
        file = number_of(name)
        if file < first:
            continue
        begin = (file, 0)
        for _, pos, kind, _, _, info in session.execute("SHOW BINLOG EVENTS IN %s", [name]):
            if kind == "Gtid":
                begin = (file, int(pos))
            elif kind in STATEMENTS and (match := ROW.search(info)):
                log.changes.append((begin, int(match[2]), int(match[1])))
    return log


def attack(
    config: DatabaseConfig, *, xa: bool = False, replica: LocalBinlogServer | None = None
) -> Mapping[str, int]:
    """Figures of one attack: reads, changes, and the reads that are wrong.

    Args:
        config: of the server that is written.
        xa: whether some of the writers prepare their transactions.
        replica: of that server, where it is read; None for the server itself.
    """
    read = config if replica is None else config_of(replica)
    with connect(config) as session, connect(read) as asking:
        prepare(session)
        if replica is not None:
            wait_for(lambda: counted(asking) == WRITERS, 60, "the replica to have the table")
        asking.execute("FLUSH BINARY LOGS")
        first = binlog_snapshot.log_end(asking).file
        with writers(config, xa=xa):
            chunks, others = reads(read)
        log = log_of(asking, first)
    return {
        "chunks": len(chunks),
        "changes": len(log.changes),
        "files": len({at[0] for at, *_ in log.changes}),
        "inside": sum(0 < sum(chunk.seen.values()) < len(log.changes) for chunk in chunks),
        "missed": log.missed(chunks),
        "beyond": log.beyond(chunks),
        "at once": len(others),
        "missed at once": log.missed(others),
    }


@pytest.fixture
def attacked(binlog_server: DatabaseConfig) -> Iterator[Callable[..., DatabaseConfig]]:
    """Set variables of the server for a test; its isolation is not ours, and its log has texts."""
    before: dict[str, str] = {}

    def put(session: Session, name: str, value: str) -> None:
        ((before[name],),) = session.execute(f"SELECT @@global.{name}")
        session.execute(f"SET GLOBAL {name} = {value}")

    def having(**variables: str) -> DatabaseConfig:
        with connect(binlog_server) as session:
            session.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
            given = {} if session.is_mariadb else {"binlog_rows_query_log_events": "ON"}
            for name, value in (given | variables).items():
                put(session, name, value)
        return binlog_server

    yield having
    with connect(binlog_server) as session:
        for name, value in before.items():
            session.execute(f"SET GLOBAL {name} = %s", [value])


def check(found: Mapping[str, int]) -> None:
    assert found["inside"] > 5, found
    assert found["files"] > 1, found
    assert (found["missed"], found["beyond"]) == (0, 0), found


def check_and_miss(config: DatabaseConfig, *, xa: bool = False) -> None:
    """Attack until reads at once have missed something: what is checked could be seen to be wrong."""
    for _ in range(ATTACKS):
        found = attack(config, xa=xa)
        check(found)
        if found["missed at once"] > 0:
            return
    pytest.fail(f"no read at once has missed anything: {found}")


def test_a_replica_may_commit_in_another_order(
    attacked, binlog_source: LocalBinlogServer, is_mysql: bool, tmp_path: Path
):
    """It is the first one: a replica takes all that its server's log has."""
    replica = binlog_source.sibling(tmp_path, number=2)
    if is_mysql:
        replica.settings |= {
            "replica_preserve_commit_order": "OFF",
            "replica_parallel_workers": "6",
        }
        replica.settings |= {"binlog_rows_query_log_events": "ON", "binlog_order_commits": "OFF"}
    else:
        replica.settings |= {"slave_parallel_threads": "6"}
    with running(replica):
        replica.follow(binlog_source)
        check(attack(attacked(), replica=replica))


@contextmanager
def running(server: LocalBinlogServer) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.kill()


@pytest.mark.parametrize("sync", ["0", "1"])
def test_a_chunk_holds_all_transactions_before_its_place(attacked, is_mysql: bool, sync: str):
    config = attacked(sync_binlog=sync)
    if is_mysql and sync == "1":  # what waits for the disk is in the log already
        check_and_miss(config)
        return
    found = attack(config)
    check(found)
    if not is_mysql:  # it is the place of a snapshot
        assert found["missed at once"] == 0, found


def test_the_order_in_which_the_engine_commits_does_not_matter(attacked, is_mysql: bool):
    if not is_mysql:
        pytest.skip("MariaDB has no other order")
    check(attack(attacked(sync_binlog="1", binlog_order_commits="OFF")))


@pytest.mark.parametrize("sync", ["0", "1"])
def test_a_prepared_transaction_is_in_the_log_before_others_see_it(
    attacked, monkeypatch: pytest.MonkeyPatch, sync: str
):
    monkeypatch.setattr(binlog_snapshot, "WAKED_S", 0.25)  # more reads, and long enough
    check_and_miss(attacked(sync_binlog=sync), xa=True)
