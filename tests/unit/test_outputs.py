"""Output topics over the real driver and tasks: order, crashes, TOAST values, truncates."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.sink import topics
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ORDERS, Shop, event, schema_of

PLACEHOLDER = "__debezium_unavailable_value"
CLEAN = f"clean.{ORDERS}"
KEYS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "touch", "touch", "big", "delete", "move"]), KEYS),
    st.tuples(
        st.sampled_from(["truncate", "batch", "batch", "crash", "restart", "pause", "resume"])
    ),
)


@pytest.fixture
def out(monkeypatch):
    """Output topics in memory, in place of Kafka's."""
    found = MemoryTopics()
    monkeypatch.setattr(topics, "write", found.write)
    return found


def shop_at(root: Path, **output) -> Shop:
    schemas = {ORDERS: schema_of(ORDERS, id="int4", v="int4", big="text")}
    sections = {"output": {"topic_prefix": "clean", **output}}
    return Shop(root, Broker(), schemas, sections=sections)


class Source:
    """The table as the database has it, and the events that it sends."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.lsn = shop, 100
        self.truncated = 0
        self.moved: set[int] = set()
        self.rows: dict[int, tuple[int, str]] = {}
        self.sent: list[tuple[int, int, tuple[int, str] | None]] = []

    def send(self, op, key, *, big=None, headers=None):
        self.lsn += headers is None  # both halves of a key change stand at one position
        v, text = self.rows.get(key, (0, ""))
        row = {"id": key, "v": v, "big": text if big is None else big}
        raw = json.dumps({"id": key}).encode()
        self.shop.broker.put(f"shop.{ORDERS}", key % 2, raw, event(op, self.lsn, row), headers)
        self.sent.append((key, self.lsn, self.rows.get(key)))

    def step(self, what, key):
        known = self.rows.get(key)
        if what == "delete" and known:
            del self.rows[key]
            self.send("d", key)
        elif what == "write" and not known:
            self.rows[key] = (self.lsn, f"text {self.lsn}")
            self.send("c", key)
        elif what == "touch" and known:
            self.rows[key] = (self.lsn, known[1])
            self.send("u", key, big=PLACEHOLDER)
        elif what == "big" and known:
            self.rows[key] = (known[0], f"text {self.lsn}")
            self.send("u", key)
        elif what == "move":
            self.move(key, known)

    def move(self, key, known):
        """Its large value stays where it is: the event has none, and only the table knows it."""
        other = (key + 3) % 6
        if known and other not in self.rows:
            self.lsn += 1
            del self.rows[key]
            self.moved.add(other)
            new, old = (json.dumps({"id": k}).encode() for k in (other, key))
            self.send("d", key, headers=[("__debezium.newkey", new)])
            self.rows[other] = (self.lsn, known[1])
            self.send("c", other, big=PLACEHOLDER, headers=[("__debezium.oldkey", old)])

    def truncate(self):
        self.lsn += 1
        self.rows.clear()
        self.truncated = self.lsn
        self.shop.broker.put(f"shop.{ORDERS}", 0, None, event("t", self.lsn, {"id": 0}))


def consume(out: MemoryTopics) -> dict[int, tuple[int, str]]:
    """What a consumer has in the end; no record may go back."""
    rows: dict[int, tuple[int, str]] = {}
    last: dict[int, bytes] = {}
    for key, position, value in out.events(CLEAN):
        assert position >= last.get(key, b""), f"{key} went back"
        last[key] = position
        if value is None or value["op"] == "d":
            rows.pop(key, None)
        else:
            rows[key] = value["after"]["v"], value["after"]["big"]
    return rows


@settings(max_examples=120)
@example(
    steps=[("write", 1), ("write", 4), ("batch",), ("delete", 4), ("move", 1), ("batch",)], seed=0
)
@given(steps=st.lists(STEPS, min_size=5, max_size=60), seed=st.integers(0, 1 << 16))
def test_what_arrives_is_what_was_sent_in_order_and_once(steps, seed):
    dice, out = random.Random(seed), MemoryTopics()
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "write", out.write)
        shop = shop_at(Path(root))
        source = Source(shop)
        for name, *keys in steps:
            if name == "truncate":
                source.truncate()
            elif name in {"pause", "resume"}:
                shop.records.append({"type": f"table-{name}", "table": ORDERS})
            elif name == "restart":
                shop.restart()
            elif name in {"batch", "crash"}:
                batch(shop, out, dice, crashes=name == "crash")
            else:
                source.step(name, *keys)
        shop.records.append({"type": "table-resume", "table": ORDERS})
        shop.run()
        shop.run()
        arrived = consume(out)
        assert arrived.keys() == source.rows.keys()
        for key, row in arrived.items():
            assert row in (source.rows[key], (source.rows[key][0], PLACEHOLDER))
            assert key in source.moved or row == source.rows[key]
        assert shop.state.tables.get(ORDERS) is None or not shop.state.tables[ORDERS].code
        values = {
            (key, int.from_bytes(position[-8:])): value["after"]
            for key, position, value in out.events(CLEAN)
            if value and value["op"] != "d"
        }
        for key, lsn, row in source.sent:
            if row is not None and (lsn > source.truncated or (key, lsn) in values):
                found = values[key, lsn]  # what came after its truncate may have been left out
                assert found["v"] == row[0]
                assert found["big"] in ({row[1], PLACEHOLDER} if key in source.moved else {row[1]})
        records = [(m.key, m.value, dict(m.headers)["lakemark.id"]) for m in out.records[CLEAN]]
        assert len(records) == len(set(records))


def batch(shop: Shop, out: MemoryTopics, dice: random.Random, *, crashes: bool) -> None:
    """One batch; one that crashes does so somewhere, and is repeated by a new process."""
    left = dice.randrange(6) if crashes else -1

    def dies() -> bool:
        nonlocal left
        left -= 1
        return left == -1 and crashes

    out.dies = dies
    shop.checkpoint.dies_before_saving = crashes
    died = False
    try:
        shop.run()
    except DiedError:
        died = True
    if not died:
        return
    out.dies = lambda: False
    shop.checkpoint.dies_before_saving = False
    shop.restart()
    planned = dict(shop.checkpoint.planned[shop.batch])
    planned.pop(shop.config.topics.control)
    shop.again()
    shop.read = {t: dict(p) for t, p in planned.items()}
