"""Output topics over the real driver and tasks: order, crashes, TOAST values, truncates."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.settings.config import OutputConfig
from lakemark.sink.delta import delta_rs
from lakemark.sink.output import publisher, transaction
from lakemark.state import tables
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.memory_topics import MemoryTopics
from tests.kit.nightly import examples
from tests.kit.shop import ITEMS, ORDERS, Shop, event, schema_of

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
    monkeypatch.setattr(transaction, "write", found.write)
    return found


def shop_at(root: Path, *, sections=None) -> Shop:
    schemas = {
        ORDERS: schema_of(ORDERS, id="int4", v="int4", big="text"),
        ITEMS: schema_of(ITEMS, id="int4", v="int4"),
    }
    sections = {"output": {"topic_prefix": "clean"}, **(sections or {})}
    return Shop(root, Broker(), schemas, sections=sections)


class Source:
    """The table as the database has it, and the events that it sends."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.lsn = shop, 100
        self.truncated = 0
        self.more: dict[str, int] = {}
        self.moved: set[int] = set()
        self.rows: dict[int, tuple[int, str]] = {}
        self.sent: list[tuple[int, int, tuple[int, str] | None]] = []

    def send(self, op, key, *, big=None, headers=None):
        self.lsn += headers is None  # both halves of a key change stand at one position
        v, text = self.rows.get(key, (0, ""))
        row = {"id": key, "v": v, "big": text if big is None else big, **self.more}
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

    def column(self):
        """A column more: the running process does not know it, one that starts does."""
        self.more[f"c{len(self.more)}"] = 1
        types = {"v": "int4", "big": "text", **dict.fromkeys(self.more, "int4")}
        self.shop.schemas[ORDERS] = schema_of(ORDERS, id="int4", **types)

    def play(self, steps, out, dice, *, grows=False):
        """What happens, step by step; then the table goes on and everything is applied."""
        for name, *keys in steps:
            if name in {"truncate", "column"}:
                getattr(self, name)()
            elif name in {"pause", "resume"}:
                self.shop.records.append({"type": f"table-{name}", "table": ORDERS})
            elif name == "restart":
                self.shop.restart()
            elif name in {"batch", "crash"}:
                batch(self.shop, out, dice, crashes=name == "crash", grows=grows)
            else:
                self.step(name, *keys)
        self.shop.records.append({"type": "table-resume", "table": ORDERS})
        self.shop.run()
        self.shop.run()

    def truncate(self):
        self.lsn += 1
        self.rows.clear()
        self.truncated = self.lsn
        self.shop.broker.put(f"shop.{ORDERS}", 0, None, event("t", self.lsn, {"id": 0}))


def consume(out: MemoryTopics, *, ordered: bool = True) -> dict[int, tuple[int, str]]:
    """What a consumer has in the end; where `ordered`, no record may go back."""
    rows: dict[int, tuple[int, str]] = {}
    last: dict[int, bytes] = {}
    for key, position, value in out.events(CLEAN):
        assert position >= last.get(key, b"") or not ordered, f"{key} went back"
        last[key] = position
        if value is None or value["op"] == "d":
            rows.pop(key, None)
        else:
            rows[key] = value["after"]["v"], value["after"]["big"]
    return rows


@settings(max_examples=examples(24, nightly=1200))
@example(
    steps=[("write", 1), ("write", 4), ("batch",), ("delete", 4), ("move", 1), ("batch",)], seed=0
)
@given(steps=st.lists(STEPS, min_size=5, max_size=60), seed=st.integers(0, 1 << 16))
def test_what_arrives_is_what_was_sent_in_order_and_once(steps, seed):
    dice, out = random.Random(seed), MemoryTopics()
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "write", out.write)
        shop = shop_at(Path(root))
        source = Source(shop)
        source.play(steps, out, dice)
        arrived = consume(out)
        assert arrived.keys() == source.rows.keys()
        for key, row in arrived.items():
            assert row in (source.rows[key], (source.rows[key][0], PLACEHOLDER))
            assert key in source.moved or row == source.rows[key]
        assert shop.state.tables.get(ORDERS) is None or not shop.state.tables[ORDERS].code
        values = {
            (key, int.from_bytes(position[-8:]) // STEP): value["after"]
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


@settings(max_examples=examples(20, nightly=600))
@given(
    steps=st.lists(st.one_of(STEPS, st.just(("column",))), min_size=5, max_size=60),
    seed=st.integers(0, 1 << 16),
)
def test_a_repeated_batch_that_has_grown_or_goes_another_way_leaves_the_same_rows(steps, seed):
    """It catches up where it streamed, or the other way round, and its plan was lost."""
    dice, out = random.Random(seed), MemoryTopics()
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "write", out.write)
        shop = shop_at(Path(root))
        source = Source(shop)
        source.play(steps, out, dice, grows=True)
        assert consume(out, ordered=False).keys() == source.rows.keys()
        events = [
            (m.key, m.value is None, dict(m.headers)["lakemark.source"])
            for m in out.records[CLEAN]
            if "lakemark.source" in dict(m.headers)
        ]
        assert len(events) == len(set(events))


def test_a_batch_that_catches_up_and_streams_when_it_is_repeated_deletes_all_that_is_gone(
    out, tmp_path
):
    """The first process does not know a column; the next one does, and the plan was lost."""
    shop = shop_at(tmp_path)
    for key in (0, 1):
        shop.put("c", 10 + key, key, v=1, big="", partition=key)
    shop.run()
    shop.schemas[ORDERS] = schema_of(ORDERS, id="int4", v="int4", big="text", more="int4")
    shop.put("u", 20, 0, v=2, big="", more=1)
    shop.put("t", 50, 0)
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    assert consume(out) == {}
    shop.put("c", 30, 3, v=3, big="", more=1, partition=1)
    shop.restart()
    shop.checkpoint.planned[shop.batch].update(shop.broker.ends())
    shop.again()
    assert shop.values() == {}
    assert consume(out) == {}


def batch(
    shop: Shop, out: MemoryTopics, dice: random.Random, *, crashes: bool, grows: bool = False
) -> None:
    """One batch; one that crashes does so somewhere, and is repeated by a new process.

    `grows`: it may have less at first than when it is repeated.
    """
    ends = shop.broker.ends()
    first = {
        topic: {p: dice.randint(shop.read.get(topic, {}).get(p, 0), end) for p, end in ps.items()}
        for topic, ps in ends.items()
    }
    left = dice.randrange(6) if crashes else -1

    def dies() -> bool:
        nonlocal left
        left -= 1
        return left == -1 and crashes

    out.dies = dies
    shop.checkpoint.dies_before_saving = crashes
    died = False
    try:
        shop.run(first if crashes and grows else ends)
    except DiedError:
        died = True
    if not died:
        return
    out.dies = lambda: False
    shop.checkpoint.dies_before_saving = False
    shop.restart()
    if grows:
        shop.checkpoint.planned[shop.batch].update(ends)
    planned = dict(shop.checkpoint.planned[shop.batch])
    planned.pop(shop.config.topics.control)
    shop.again()
    shop.read = {t: dict(p) for t, p in planned.items()}


def test_a_truncate_whose_commit_failed_deletes_nothing_that_came_after_it(out, tmp_path):
    """The batch is read again in one piece: rows of another partition that came back are seen."""
    shop = shop_at(tmp_path, sections={"stream": {"max_events_per_batch": 6}})
    for key in (5, 6):
        shop.put("c", 10 + key, key, v=1, big="", partition=key % 2)
    shop.put("c", 1, 1, v=1, table=ITEMS)
    shop.run()
    shop.put("t", 100, 0)
    for number in range(4):
        shop.put("c", 101 + number, 20 + number, v=1, big="", partition=1)
    shop.put("c", 110, 5, v=2, big="", partition=1)
    shop.put("c", 2, 2, v=1, table=ITEMS)

    def away(*_, **__):
        raise DependencyError("the lake does not answer", code="lake-unavailable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_rs, "truncate", away)
        shop.run()
    assert shop.state.tables[ORDERS].state == tables.ERRORED
    for _ in range(4):
        shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert consume(out).keys() == shop.values().keys() == {5, 20, 21, 22, 23}


ROW = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "int32", "optional": True, "field": "v"},
]


def put_wrapped(shop, op, lsn, key, *, table=ORDERS, sides=("key", "value"), **row):
    image = {"type": "struct", "fields": ROW, "optional": True}
    schema = {
        "type": "struct",
        "fields": [{**image, "field": "before"}, {**image, "field": "after"},
                   {"type": "string", "field": "op"}],
    }  # fmt: skip
    payload = json.loads(event(op, lsn, {"id": key, **row}, table=table))
    named = {"schema": {"type": "struct", "fields": ROW[:1]}, "payload": {"id": key}}
    wrapped = {"schema": schema, "payload": payload}
    raw = json.dumps(named if "key" in sides else named["payload"]).encode()
    value = json.dumps(wrapped if "value" in sides else payload).encode()
    shop.broker.put(f"shop.{table}", 0, None if op == "t" else raw, value)


def test_deletes_of_a_truncate_have_wrapped_keys_or_the_table_waits(out, tmp_path):
    """Output is configured while the log goes on: the first event of the table is a truncate."""
    schemas = {name: schema_of(name, id="int4", v="int4") for name in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    put_wrapped(shop, "c", 10, 5, v=1)
    put_wrapped(shop, "c", 11, 6, v=1)
    shop.run()
    shop.config = shop.config.model_copy(update={"output": OutputConfig(topic_prefix="clean")})
    shop.restart()
    put_wrapped(shop, "c", 2, 2, table=ITEMS, v=1)
    shop.run()
    put_wrapped(shop, "t", 100, 0)
    shop.run()
    assert shop.state.tables[ORDERS].code == "output-not-ready"
    put_wrapped(shop, "c", 110, 5, v=2)
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values() == {5: 2}
    keys = [json.loads(m.key)["payload"]["id"] for m in out.records[CLEAN]]
    assert {5, 6} == set(keys)
    last = {json.loads(m.key)["payload"]["id"]: m.value for m in out.records[CLEAN]}
    assert last[6] is None
    assert last[5] is not None


@pytest.mark.parametrize("side", ["key", "value"])
def test_keys_and_values_are_wrapped_each_for_itself(out, tmp_path, side):
    """Each converter has a setting of its own: what is written follows them both."""
    shop = shop_at(tmp_path)
    for batch in range(2):  # what a batch tells, and what the state keeps
        put_wrapped(shop, "c", 100 * batch + 10, 5, sides=[side], v=1)
        put_wrapped(shop, "t", 100 * batch + 50, 0, sides=[side])
        shop.run()
        assert shop.state.tables[ORDERS].state == tables.STREAMING
        created, deleted, tombstone = out.records[CLEAN][3 * batch :]
        assert tombstone.key == deleted.key
        assert json.loads(created.key) == json.loads(deleted.key)
        assert ("schema" in json.loads(deleted.key)) is (side == "key")
        assert ("schema" in json.loads(deleted.value)) is (side == "value")


def test_a_truncate_without_a_catalog(out, tmp_path):
    """The wrapper says how keys are written, where there is neither database nor schema file."""
    shop = Shop(tmp_path, Broker(), {}, sections={"output": {"topic_prefix": "clean"}})
    put_wrapped(shop, "c", 10, 5, v=1)
    shop.run()
    put_wrapped(shop, "t", 100, 0)
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values() == {}
    assert [m.value is None for m in out.records[CLEAN]] == [False, False, True]


@pytest.mark.parametrize("resolves", [True, False])
def test_values_are_put_in_unless_one_wants_events_as_they_came(out, tmp_path, resolves):
    output = {"topic_prefix": "clean", "resolve_unavailable": resolves}
    shop = shop_at(tmp_path, sections={"output": output})
    shop.put("c", 10, 5, v=1, big="text")
    shop.put("u", 20, 5, v=2, big=PLACEHOLDER)
    shop.run()
    shop.put("u", 30, 5, v=3, big=PLACEHOLDER)
    shop.run()
    came = [json.loads(record.value)["after"]["big"] for record in out.records[CLEAN]]
    assert came == ["text", *["text" if resolves else PLACEHOLDER] * 2]
    assert shop.values() == {5: 3}


def test_what_is_removed_goes_out_in_pieces(out, tmp_path, monkeypatch):
    monkeypatch.setattr(publisher, "AT_ONCE", 7)
    shop = shop_at(tmp_path)
    for key in range(25):
        shop.put("c", 10 + key, key, v=1, big="")
    shop.run()
    calls = []
    real = transaction.write
    monkeypatch.setattr(transaction, "write", lambda *a: calls.append(len(a[3])) or real(*a))
    shop.put("t", 100, 0)
    shop.run()
    assert [count for count in calls if count][:8] == [7, 7, 7, 7, 7, 7, 7, 1]
    assert consume(out) == {}
    assert len(out.records[CLEAN]) == 25 + 50


def test_an_output_topic_is_no_change_topic(tmp_path):
    """Also of a pipeline that knows nothing of it: a row that was deleted would be back."""
    schemas = {name: schema_of(name, id="int4", v="int4") for name in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v=1)
    shop.put("d", 20, 1)
    shop.run()
    ours = [("lakemark.id", b"other/00"), ("lakemark.position", b"00")]
    told = event("c", 10, {"id": 1, "v": 1})
    shop.broker.put(f"shop.clean.{ORDERS}", 0, b'{"id":1}', told, ours)
    shop.run()
    assert shop.values() == {}
    assert shop.state.tables[ORDERS].topics == [f"shop.{ORDERS}"]
