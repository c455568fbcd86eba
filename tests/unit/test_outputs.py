"""Output topics over the real driver and tasks: order, crashes, TOAST values, truncates."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.sink import topics
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ORDERS, Shop, event, schema_of

PLACEHOLDER = "__debezium_unavailable_value"
CLEAN = f"clean.{ORDERS}"
KEYS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "touch", "big", "delete"]), KEYS),
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
        self.rows: dict[int, tuple[int, str]] = {}
        self.sent: list[tuple[int, int, tuple[int, str] | None]] = []

    def send(self, op, key, *, big=None):
        self.lsn += 1
        v, text = self.rows.get(key, (0, ""))
        row = {"id": key, "v": v, "big": text if big is None else big}
        raw = json.dumps({"id": key}).encode()
        self.shop.broker.put(f"shop.{ORDERS}", key % 2, raw, event(op, self.lsn, row))
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
        assert consume(out) == source.rows
        assert shop.state.tables.get(ORDERS) is None or not shop.state.tables[ORDERS].code
        values = {
            (key, int.from_bytes(position[-8:])): value["after"]
            for key, position, value in out.events(CLEAN)
            if value and value["op"] != "d"
        }
        for key, lsn, row in source.sent:
            if row is not None and (lsn > source.truncated or (key, lsn) in values):
                found = values[key, lsn]  # what came after its truncate may have been left out
                assert (found["v"], found["big"]) == row
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
