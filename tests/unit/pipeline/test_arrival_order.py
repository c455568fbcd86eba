"""Rows that say no place in the log, through whole batches: what arrives last of a key counts."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.model import positions
from lakemark.model.decoding import ANY_CONVERTER, Flattening
from lakemark.state import data_loss, stored_form
from tests.kit.memory_pipeline import Broker
from tests.kit.nightly import examples
from tests.kit.shop import ORDERS, Shop, compact, schema_of

TOPIC = f"shop.{ORDERS}"
ROWS = replace(ANY_CONVERTER, flattening=Flattening(connector="postgresql", arrival=True))
PLACEHOLDER = "__debezium_unavailable_value"


class FlatShop(Shop):
    """A shop whose records are rows alone; keys stand in the partition that they hash to."""

    partitions = 2

    def tell(self, key: int, v: str | None, *, headers=None, rewritten: bool = False) -> None:
        """A row, or with None that it is gone: without a value, or as a row that says so."""
        row = {"id": key, "v": v}
        deleted = {"id": key, "v": "was", "__deleted": "true"} if rewritten else None
        value = deleted if v is None else row
        raw = None if value is None else compact(value)
        at = key % self.partitions
        self.broker.put(TOPIC, at, compact({"id": key}), raw, headers)

    def grow(self, partitions: int) -> None:
        """More partitions: keys go elsewhere."""
        self.partitions = partitions
        parts = self.broker.topics.setdefault(TOPIC, [])
        parts += [[] for _ in range(partitions - len(parts))]

    def make_anew(self) -> None:
        """The topic is another one, and a person has let the pipeline go on."""
        self.broker.topics[TOPIC] = [[] for _ in range(self.partitions)]
        first = dict.fromkeys(range(self.partitions), 0)
        state = self.state
        data_loss.begin_again(state, {TOPIC: first}, anew={TOPIC})
        self.checkpoint.states[self.batch] = stored_form.encode(state)
        self.read = {TOPIC: first}
        self.restart()


def flat_shop(root: Path) -> FlatShop:
    source = {"connector_file": str(root / "connector.json"), "order": "arrival"}
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    sections = {"source": source}
    return FlatShop(root, Broker(), schemas, sections=sections, converter=ROWS)


@pytest.fixture
def shop(tmp_path):
    return flat_shop(tmp_path)


@pytest.mark.usefixtures("letters")
def test_the_last_record_of_a_key_is_its_row(shop):
    for key, v in [(1, "a"), (2, "a"), (1, "b"), (3, "a"), (2, None)]:
        shop.tell(key, v)
    shop.run()
    assert shop.values() == {1: "b", 3: "a"}
    kind = positions.KINDS[positions.ARRIVAL]
    assert shop.rows()[1]["_cdc"]["position"][0] == kind
    shop.tell(3, None, rewritten=True)
    shop.tell(3, None)  # the tombstone behind it
    shop.tell(2, "c")
    shop.run()
    assert shop.values() == {1: "b", 2: "c"}


@pytest.mark.usefixtures("letters")
def test_two_deletes_of_a_row_are_never_deletes_of_two(shop):
    """Neither where the rewritten one shows the row as it was: none of them is to be read again."""
    shop.tell(1, "a")
    shop.run()
    shop.tell(1, None, rewritten=True)
    shop.tell(1, None)
    shop.tell(1, None, rewritten=True)
    shop.run()
    assert shop.values() == {}
    assert shop.state.tables[ORDERS].repair.reread_keys == {}


@pytest.mark.usefixtures("letters")
def test_what_is_sent_again_is_a_new_change_and_right_in_the_end(shop):
    history = [(1, "a"), (1, "b"), (2, "a"), (1, None), (1, "c")]
    for key, v in history:
        shop.tell(key, v)
    shop.run()
    for key, v in history[1:3]:
        shop.tell(key, v)
    shop.run()
    assert shop.values() == {1: "b", 2: "a"}, "older for a moment: this is what is not promised"
    for key, v in history[3:]:
        shop.tell(key, v)
    shop.run()
    assert shop.values() == {1: "c", 2: "a"}
    assert shop.state.tables[ORDERS].size.replays == 0


@pytest.mark.usefixtures("letters")
def test_a_value_that_a_record_leaves_out_is_kept(shop):
    shop.tell(1, "a")
    shop.run()
    shop.tell(1, PLACEHOLDER)
    shop.run()
    assert shop.values() == {1: "a"}


@pytest.mark.usefixtures("letters")
def test_the_halves_of_a_key_change_are_a_delete_and_an_insert(shop):
    """They stand in two partitions, and nothing says that one is older than what came there."""
    shop.tell(1, "a")
    shop.tell(2, "x")
    shop.run()
    moved = [("__debezium.newkey", compact({"id": 2}))], [("__debezium.oldkey", compact({"id": 1}))]
    shop.tell(1, None, headers=moved[0])
    shop.tell(2, "a", headers=moved[1])
    shop.run()
    assert shop.values() == {2: "a"}
    state = shop.state.tables[ORDERS]
    assert (state.pending.are_left(), state.repair.reread_keys) == (False, {})


def test_what_has_its_envelope_still_is_no_row(shop, letters):
    shop.put("c", 5, 1, v="a")
    shop.tell(2, "a")
    shop.run()
    assert shop.values() == {2: "a"}
    assert {letter.reason for letter in letters} == {"foreign-connector"}


@pytest.mark.usefixtures("letters")
def test_a_topic_made_anew_begins_from_zero_and_counts(shop):
    for turn in range(5):
        shop.tell(1, f"old {turn}")
    shop.run()
    shop.make_anew()
    shop.tell(1, "new")
    shop.run()
    assert shop.values() == {1: "new"}


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("partitions", [3, 4])
def test_a_key_goes_on_in_another_partition(shop, partitions):
    for turn in range(5):
        for key in range(6):
            shop.tell(key, f"old {turn}")
    shop.run()
    shop.grow(partitions)
    for key in range(6):
        shop.tell(key, "new")
    shop.run()
    shop.run()
    assert shop.values() == dict.fromkeys(range(6), "new")
    in_doubt = bool(shop.state.tables[ORDERS].repair.resnapshot)
    assert in_doubt == (partitions == 3), "keys may have moved between the old ones"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.integers(0, 3), st.sampled_from(["a", "b", "c", None])),
        st.tuples(st.just("again"), st.integers(0, 9), st.booleans()),
        st.tuples(st.sampled_from(["batch", "repeated", "restart"]), st.none(), st.none()),
    ),
    max_size=24,
)


@settings(max_examples=examples(12, nightly=400), deadline=None)
@given(steps)
def test_tables_are_what_each_key_had_last(history):
    """Whatever is sent again from some change on, and wherever batches end or are repeated."""
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakemark.sink.output.dead_letter.write", lambda dead, **_: None)
        shop, sent, expected = flat_shop(Path(root)), [], {}
        for what, one, other in [*history, ("batch", None, None)]:
            if what == "row":
                sent.append((one, other))
                expected[one] = other
                shop.tell(one, other)
            elif what == "again":  # a connector goes on from where it had noted to be
                for key, v in sent[-one:]:
                    shop.tell(key, v, rewritten=other)
            elif what == "restart":
                shop.restart()
            elif shop.broker.topics:
                shop.run()
                if what == "repeated":
                    shop.again()
        found = shop.values() if shop.broker.topics and expected else {}
        assert found == {key: v for key, v in expected.items() if v is not None}


# -- types that come with the records alone -----------------------------------------------------------

KEY = [{"type": "int64", "optional": False, "field": "id"}]
VALUE = [*KEY, {"type": "string", "optional": True, "field": "v"}]


class WrappedShop(FlatShop):
    """Nobody knows the table but its records: a delete has the schema of its key."""

    def tell(self, key, v, *, headers=None, rewritten=False) -> None:
        at = key % self.partitions
        told = self.wrapped(VALUE, {"id": key, "v": v}, "Value") if v is not None else None
        self.broker.put(TOPIC, at, self.wrapped(KEY, {"id": key}, "Key"), told, headers)

    @staticmethod
    def wrapped(fields, payload, name) -> bytes:
        schema = {"type": "struct", "fields": fields, "optional": False, "name": f"{TOPIC}.{name}"}
        return compact({"schema": schema, "payload": payload})


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("behavior", ["lenient", "exception"])
def test_deletes_need_no_catalog(tmp_path, behavior):
    source = {"connector_file": str(tmp_path / "connector.json"), "order": "arrival"}
    shop = WrappedShop(
        tmp_path, Broker(), {}, settings={"schema_changes": {"behavior": behavior}},
        sections={"source": source}, converter=ROWS,
    )  # fmt: skip
    if behavior == "lenient":  # else a table of a key alone gets no more columns
        shop.tell(7, None)  # of a table that nobody has seen
        shop.run()
    for key, v in [(1, "a"), (3, "a"), (1, None), (5, "b"), (3, None), (3, "c")]:
        shop.tell(key, v)
    shop.run()
    assert shop.values() == {3: "c", 5: "b"}
    shop.tell(3, None)
    shop.run()
    shop.tell(1, "d")
    shop.run()
    assert shop.values() == {1: "d", 5: "b"}
    assert (shop.state.tables[ORDERS].state, shop.state.tables[ORDERS].code) == ("streaming", "")
