"""A connector that goes on at another server, by the names that transactions have in both logs."""

import json
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model.decoding import LOG_CHANGED
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker, reconnected
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, SIGNALS, Shop, compact, schema_of

TOPIC = f"shop.{ORDERS}"
A, B = "aaaaaaaa-0000-11f1-befd-02fc00000001", "bbbbbbbb-0000-11f1-befd-02fc00000001"


class ServerShop(Shop):
    """A shop whose connector is MySQL's."""

    def _start(self):
        pipeline = super()._start()
        pipeline.sources = reconnected(pipeline.sources, kind="mysql")
        return pipeline

    def tell(self, op, log, name, key, v=None, *, partition=None, ts=None):
        """An event of transaction `name` (origin, number) at `log` (file, place)."""
        file, pos = log
        gtid = None if name is None else f"{name[0]}:{name[1]}"
        source = {
            "connector": "mysql", "name": "shop", "ts_ms": ts or name[1], "ts_us": (ts or name[1]) * 1000,
            "snapshot": "false", "db": "public", "table": "orders", "server_id": 1, "gtid": gtid,
            "file": f"binlog.{file:06d}", "pos": pos, "row": 0,
        }  # fmt: skip
        before = {"id": key, "v": "?"} if op in "ud" else None
        after = {"id": key, "v": v} if op in "cu" else None
        order = {"id": gtid, "total_order": 1} if op != "t" else None
        value = {"before": before, "after": after, "source": source, "op": op, "transaction": order}
        raw = None if op == "t" else compact({"id": key})
        at = key % 2 if partition is None else partition
        self.broker.put(TOPIC, at, raw, compact(value))

    def run_twice(self, upto=None):
        """A batch, and the same again in a new process, as after a crash at its end."""
        before = {topic: dict(places) for topic, places in self.read.items()}
        self.run(upto)
        after, self.read = self.read, before
        self.restart()
        self.again()
        self.read = after

    def settle(self):
        """Batches until nothing waits."""
        for _ in range(4):
            self.run()
        assert self.entry.state == tables.STREAMING, (self.entry.code, self.entry.reason)

    @property
    def entry(self):
        return self.state.tables[ORDERS]

    @property
    def is_whole(self):
        return not self.entry.repair.resnapshot and not self.entry.repair.reread_keys


def shop_at(path):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    return ServerShop(path, Broker(), schemas, signal_table=SIGNALS)


@pytest.fixture
def shop(tmp_path):
    return shop_at(tmp_path)


def begun(shop):
    """Where the newest epoch begins, by partition."""
    return shop.state.epochs[-1][TOPIC]


def test_what_the_other_server_sends_again_is_known_and_what_is_new_goes_on(shop):
    shop.tell("c", (4, 700), (A, 8), 2, "a")
    shop.tell("u", (4, 800), (A, 9), 2, "b")
    shop.tell("c", (4, 900), (A, 10), 1, "x")
    shop.run()
    shop.tell("u", (1, 300), (A, 9), 2, "b")  # again
    shop.tell("u", (1, 500), (B, 1), 2, "c")
    shop.tell("u", (1, 600), (B, 2), 1, "y")
    shop.run()
    assert shop.values() == {2: "b", 1: "x"}, "nothing goes back, and nothing is new yet"
    assert (shop.entry.code, shop.entry.retried) == (LOG_CHANGED, True)
    shop.settle()
    assert shop.values() == {2: "c", 1: "y"}
    assert shop.is_whole
    assert shop.entry.size.events == 5, "the one that came again is none"
    assert begun(shop) == {0: 3, 1: 1}


def test_an_event_of_the_very_moment_of_the_last_one_is_not_dropped(shop):
    """MariaDB has whole seconds: by the time alone it would be taken for one that comes again."""
    shop.tell("c", (4, 700), (A, 8), 2, "a", ts=100)
    shop.run()
    shop.tell("u", (1, 500), (B, 1), 2, "b", ts=100)
    shop.run()
    shop.settle()
    assert shop.values() == {2: "b"}


def test_events_of_the_old_log_that_are_read_late_are_not_lost(shop):
    """Their epoch has begun too early: the first event behind them begins another one."""
    shop.tell("c", (4, 700), (A, 8), 2, "a")
    shop.tell("c", (4, 750), (A, 9), 1, "x")
    shop.run()
    shop.tell("u", (4, 800), (A, 10), 1, "y")
    shop.tell("u", (4, 900), (A, 11), 2, "b")
    shop.tell("u", (1, 300), (B, 1), 2, "c")
    shop.run({TOPIC: {0: 3, 1: 1}})  # partition 1 waits
    shop.run({TOPIC: {0: 3, 1: 1}})
    assert begun(shop) == {0: 2, 1: 1}
    shop.run({TOPIC: {0: 3, 1: 2}})
    assert shop.values() == {2: "c", 1: "y"}
    shop.tell("u", (1, 400), (B, 2), 1, "z")
    shop.tell("u", (1, 500), (B, 3), 2, "d")
    shop.settle()
    assert len(shop.state.epochs) == 2
    assert shop.values() == {2: "d", 1: "z"}
    assert shop.is_whole


@pytest.mark.parametrize("partition", [0, 1])
def test_a_truncate_of_a_log_that_stands_below_puts_the_table_in_doubt(shop, partition):
    """Partition 1 is at rest, and the other log's places are beyond it: its event shows nothing."""
    shop.tell("c", (3, 100), (A, 5), 1, "x")
    shop.tell("c", (4, 700), (A, 8), 2, "a")
    shop.run()
    shop.tell("u", (3, 500), (B, 1), 1, "y")
    shop.settle()
    assert shop.values() == {1: "y", 2: "a"}
    assert shop.is_whole
    shop.tell("t", (3, 600), (B, 2), None, partition=partition)
    shop.tell("c", (3, 700), (B, 3), 1, "z")
    shop.settle()
    assert not shop.is_whole


def test_there_and_back_and_there_again(shop):
    places = {"a": [4, 100], "b": [1, 100]}

    def at(log):
        places[log][1] += 100
        return tuple(places[log])

    for number, (log, origin, n) in enumerate(
        [("a", A, 1), ("b", B, 1), ("a", A, 2), ("b", B, 2), ("a", A, 3)]
    ):
        for key in (1, 2):
            shop.tell("c" if not number else "u", at(log), (origin, 10 * n + key), key, f"{number}")
        shop.settle()
        assert shop.values() == {1: f"{number}", 2: f"{number}"}
    assert len(shop.state.epochs) == 2, "a log with higher places goes on in the same epoch"
    assert shop.is_whole


def test_a_log_that_was_reset_is_a_named_error(shop):
    """Numbers that are known, and newer: nothing proves what this log is."""
    shop.tell("c", (4, 700), (A, 80), 2, "a", ts=100)
    shop.run()
    shop.tell("u", (1, 300), (A, 3), 2, "b", ts=200)
    shop.run()
    assert shop.entry.code == "position-regressed"
    assert not shop.state.epochs


def test_a_state_that_has_no_names_proves_nothing(shop):
    """As versions before wrote it: what comes again is told by its time."""
    shop.tell("c", (4, 700), (A, 80), 2, "a", ts=100)
    shop.run()
    for places in shop.state.applied.values():
        for reached in places.values():
            assert reached.seen
    stored = shop.state
    stored.applied = {
        topic: {p: type(r)(r.position, r.source_ts, r.creates) for p, r in places.items()}
        for topic, places in stored.applied.items()
    }
    shop.checkpoint.save(stored)
    shop.tell("c", (4, 600), (A, 79), 2, "older", ts=90)
    shop.run()
    assert shop.values() == {2: "a"}
    assert (shop.entry.state, shop.state.epochs) == (tables.STREAMING, [])


def test_a_batch_that_is_repeated_does_the_same(shop):
    shop.tell("c", (4, 700), (A, 8), 2, "a")
    shop.run()
    shop.tell("u", (1, 500), (B, 1), 2, "b")
    for _ in range(4):
        shop.run_twice()
    assert shop.values() == {2: "b"}
    assert len(shop.state.epochs) == 1


@pytest.mark.parametrize("at", [(4, 850), (9, 1)])
def test_a_table_that_is_truncated_while_the_server_changes_is_read_again(shop, at):
    """A truncate of the batch in which it is noticed may be of either log: rows are in doubt."""
    shop.tell("c", (4, 700), (A, 8), 2, "a")
    shop.run()
    shop.tell("t", (4, 800), (A, 9), None, partition=1)
    shop.tell("u", at, (A, 10), 2, "b")
    shop.tell("u", (1, 500), (B, 1), 2, "c")
    shop.run()
    shop.settle()
    assert not shop.is_whole


# -- histories --------------------------------------------------------------------------------------


@dataclass
class Server:
    """A server with a log of its own: (transaction, place) in its order."""

    origin: str
    file: int
    log: list = field(default_factory=list)
    number: int = 0
    pos: int = 0

    def write(self, name, change, dice):
        self.pos += dice.choice([50, 100])
        if dice.random() < 0.1:
            self.file, self.pos = self.file + 1, 50
        self.log.append((name, change, (self.file, self.pos)))


class History:
    """Two servers, of which the primary is replicated in order; a connector; a lakemark that lags."""

    def __init__(self, seed, path):
        self.dice = random.Random(seed)
        self.shop = shop_at(path)
        dice = self.dice
        self.servers = [Server(A, dice.choice([1, 2, 9])), Server(B, dice.choice([1, 2, 9]))]
        for server in self.servers:
            server.pos = 100 * dice.randrange(30)
        self.primary = 0
        self.rows, self.made = {}, 0
        self.reads = 0  # the server that the connector reads
        self.sent = self.committed = 0  # transactions, in the one order that both logs have
        self.ends = {0: 0, 1: 0}
        self.truncated = False
        self.newest, self.resent_above = {}, False

    def write(self):
        dice, origin = self.dice, self.servers[self.primary]
        origin.number += 1
        name = (origin.origin, origin.number)
        key = dice.randrange(4)
        self.made += 1
        if dice.random() < 0.03:
            change, self.rows, self.truncated = ("t", None, None), {}, True
        elif key in self.rows and dice.random() < 0.2:
            change = ("d", key, None)
            del self.rows[key]
        else:
            change = ("u" if key in self.rows else "c", key, f"{self.made:05}")
            self.rows[key] = change[2]
        for server in self.servers:
            server.write(name, change, dice)

    def send(self):
        log = self.servers[self.reads].log
        if self.sent < len(log):
            (origin, number), (op, key, v), place = log[self.sent]
            at = self.dice.randrange(2) if op == "t" else key % 2
            ts = 1000 + [n for n, *_ in log].index((origin, number)) // 3
            self.shop.tell(op, place, (origin, number), key, v, partition=at, ts=ts)
            self.sent += 1

    def restart(self):
        self.sent = self.committed

    def move(self):
        if self.dice.random() < 0.5:
            self.committed = self.sent
        self.restart()
        self.primary = self.reads = 1 - self.primary

    def batch(self, *, all_of_it=False):
        top = self.shop.broker.ends().get(TOPIC, {})
        for at in self.ends:
            begin, end = self.ends[at], top.get(at, 0)
            self.ends[at] = end if all_of_it else self.dice.randint(begin, end)
        if any(self.ends.values()):
            run = self.shop.run_twice if self.dice.random() < 0.1 else self.shop.run
            run({TOPIC: dict(self.ends)})

    def run(self):
        steps = (
            [self.write] * 5
            + [self.send] * 6
            + [self.batch] * 2
            + [self.restart, self.commit, self.move]
        )
        for _ in range(80):
            self.dice.choice(steps)()
        while self.sent < len(self.servers[self.reads].log):
            self.send()
        for _ in range(8):
            self.batch(all_of_it=True)

    def commit(self):
        self.committed = self.dice.randint(self.committed, self.sent)


@settings(max_examples=examples(40, nightly=1500), deadline=None)
@given(st.integers(0, 1 << 32))
def test_histories_of_two_servers_end_in_equal_rows(tmp_path_factory, seed):
    history = History(seed, tmp_path_factory.mktemp("history"))
    history.run()
    shop = history.shop
    if not shop.broker.ends().get(TOPIC):
        return
    entry = shop.entry
    assert entry.code != "position-regressed", "names tell in all of them"
    assert entry.state == tables.STREAMING, (entry.state, entry.code)
    found = shop.values() if shop.entry.size.committed_ms else {}
    assert found == history.rows or (history.truncated and not shop.is_whole), json.dumps(
        [found, history.rows]
    )
