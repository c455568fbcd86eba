"""Whatever a signal or a control record holds: nothing raises, nothing takes long, all is answered.

Time is the thread's own on the processor, so that a busy machine does not count.
"""

import gc
import json
import time

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres import conditions
from lakemark.connectors.postgres.conditions import check
from lakemark.errors import RefusedError
from lakemark.ops.answers import Answers
from lakemark.ops.http.commands import signal_record
from lakemark.reconcile import window
from lakemark.snapshot import fields, notifications, signals
from lakemark.state import stored_form
from lakemark.state.control_records import carry_out, decoded, guarded
from lakemark.state.schema_refresh import Refresh
from tests.kit.fake_world import FakeWorld
from tests.kit.memory_pipeline import MemoryCatalog
from tests.unit.state.test_control_records import START
from tests.unit.state.test_tables import T, streaming

pytestmark = pytest.mark.usefixtures("logs")

LONGEST_S = 0.1
FEWER = settings(max_examples=max(1, settings().max_examples // 3))  # each takes 50 ms


class Quick:
    """What is done inside takes less than a tenth of a second of the processor.

    The collector of garbage looks at all that a process of many tests has kept: that does not count.
    """

    def __enter__(self):
        gc.disable()
        self.begun = time.thread_time()

    def __exit__(self, kind, *_):
        taken = time.thread_time() - self.begun
        gc.enable()
        assert kind is not None or taken < LONGEST_S


# -- what may come ----------------------------------------------------------------------------

HOSTILE = [
    *("", " ", "\0", "\x1b]0;x\x07", "\u202e", "\U0001f600", "a" * 5000, "../..", "'; DROP", "NaN"),
    *(
        r"((\w|.)+)+X",
        "(a|a)*b",
        r"\p{Lower}" * 500,
        "(" * 900,
        "[" * 900,
        "(?!(a+)+$).*",
        r"(.)\1",
    ),
    *(
        ".*",
        "public.orders",
        "public.(orders|items)",
        "PUBLIC.ORDERS",
        '"public"."orders"',
        "(?i).*",
    ),
    *("r1", "incremental", "blocking", "5s", "P1Y", "PT9999999999999999S", "9" * 400, "id > 1"),
]
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=30)
NUMBERS = (
    st.integers()
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, -(10**30)])
    | st.floats(allow_nan=False, allow_infinity=False)
)
KINDS = [*signals._TYPES, "log"]
FIELDS = [
    *("data-collections", "type", "additional-conditions", "additional-condition", "keys"),
    *("surrogate-key", "chunk-rows", "parallelism", "delay", "priority", "id", "filter"),
    "data-collection",
]
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)
CONDITION = st.fixed_dictionaries({"data-collection": TEXTS, "filter": TEXTS})
DATA = st.fixed_dictionaries(
    {},
    optional={
        "data-collections": st.lists(TEXTS, max_size=4) | JSON,
        "additional-conditions": st.lists(CONDITION, max_size=3) | JSON,
        "keys": st.lists(LEAVES, max_size=4) | JSON,
        "surrogate-key": TEXTS,
        "chunk-rows": NUMBERS,
        "parallelism": NUMBERS,
        "delay": TEXTS | NUMBERS,
        "priority": NUMBERS,
        "id": TEXTS,
        "type": TEXTS,
    },
)
SIGNALS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | JSON},
    optional={"id": TEXTS | JSON, "data": DATA | JSON | DATA.map(json.dumps)},
)


def damaged(value: bytes) -> st.SearchStrategy[bytes]:
    """The same with some bytes changed, left out or twice: also no UTF-8, and members twice."""
    at = st.integers(0, max(0, len(value) - 1))
    change = st.tuples(at, st.binary(max_size=3), at)
    return st.lists(change, max_size=3).map(lambda found: _changed(value, found))


def _changed(value, found):
    for at, inserted, end in found:
        value = value[:at] + inserted + value[end:]
    return value


def nested(depth):
    return b'{"id":"n","type":"execute-snapshot","data":' + b'{"a":' * depth


VALUES = (
    st.binary(max_size=60)
    | SIGNALS.map(lambda found: json.dumps(found).encode())
    | SIGNALS.flatmap(lambda found: damaged(json.dumps(found).encode()))
    | st.sampled_from([1, 500, 1100, 100_000]).map(nested)
)
FROZE = b'{"id":"r","type":"execute-snapshot","data":{"data-collections":["((\\\\w|.)+)+X"]}}'


# -- signals ----------------------------------------------------------------------------------


@FEWER
@given(VALUES, st.sampled_from([b"shop", b"", None, b"\xff", b"other"]))
@example(FROZE, b"shop")
@example(b'{"id":"\\ud800","type":"pause-snapshot"}', b"shop")
@example(b'{"id":"a","id":"b","type":"pause-snapshot","type":"stop-snapshot"}', b"shop")
def test_every_signal_is_answered_once_and_the_next_ones_too(value, key):
    world = FakeWorld()
    world.inbox.append((key, value))
    record = world.signals()[0]
    world.offset = 0
    with Quick():
        found = signals.read(key, value, pipeline="shop", unnamed="unnamed")
    with Quick():
        coordinator = world.start()
        for _ in range(3):
            coordinator.step()
    assert world.progress[b"_signals"] == b"1"
    answered = [note for note in world.notes if note.id == record.id]
    if isinstance(found, signals.ExecuteSnapshot):
        assert (record.id in coordinator.state.runs) != bool(answered)
    else:
        assert len(answered) == 1
    for note in world.notes:
        assert notifications.read(note.value()) == note
    world.coordinator = coordinator
    world.send("stop", "last")
    world.step()
    assert world.said("last"), "it is still there"
    again = world.start()  # what was kept of it can be read
    again.step()
    assert set(again.state.runs) == set(coordinator.state.runs)


@FEWER
@given(VALUES)
@example(FROZE)
def test_the_page_and_http_stand_every_signal(value):
    with Quick():
        answers = Answers()
        answers.signal(value, sent_ms=1, unnamed="u")
        answers.signals()
    with Quick():
        try:
            sent = signal_record(value, pipeline="shop", check=check)
        except RefusedError as error:
            refused = error.code, error.message, error.hint
            assert all(refused)
        else:
            assert signals.id_of(sent.value, "u") == sent.id


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"data-collections": ["public.a"] * 1001}, "more than 1,000 entries"),
        ({"data-collections": ["a" * 1001]}, "longer than 1,000 characters"),
        ({"data-collections": [f"(.?){{{n}}}" for n in range(900, 1000)]}, "too complex"),
        (
            {"additional-conditions": [{"data-collection": "a", "filter": "b"}] * 1001},
            "more than 1,000 entries",
        ),
    ],
)
def test_the_patterns_of_a_signal_are_bounded(data, word):
    value = json.dumps({"id": "s", "type": "execute-snapshot", "data": {"data-collections": ["a"], **data}})  # fmt: skip
    begun = time.thread_time()
    found = signals.read(b"shop", value.encode(), pipeline="shop", unnamed="u")
    assert time.thread_time() - begun < 1.0
    assert (found.code, found.id) == ("too-large", "s")
    assert word in found.message


def test_a_thousand_names_of_tables_are_one_signal():
    names = [f"public.a_table_of_a_common_length_{n}" for n in range(fields.MAX_PATTERNS)]
    value = json.dumps({"type": "execute-snapshot", "data": {"data-collections": names}})
    found = signals.read(b"shop", value.encode(), pipeline="shop", unnamed="u")
    assert isinstance(found, signals.ExecuteSnapshot)
    assert signals.matching(found.data_collections[:50], names[:50]).tables == tuple(names[:50])


def test_a_signal_beyond_what_brokers_take_is_refused_unread():
    value = b'{"id":"s","x":"' + b"a" * signals.MAX_BYTES + b'"}'
    with Quick():
        found = signals.read(b"shop", value, pipeline="shop", unnamed="u")
    assert (found.code, found.id) == ("too-large", "u")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 30_000 + "id" + ")" * 30_000,
        "((" * 20 + "id = 1" + "))" * 20,
        "NOT " * 16_000 + "a",
        "-" * 65_000,
        "a" * 100_000,
        "'" * 65_001,
        '"' * 65_001,
        "$$" * 30_000,
        "/*" * 30_000,
        "cast(" * 10_000,
        "a = " * 16_000,
        "numeric(" * 8_000,
    ],
    ids=lambda text: text[:8],
)
@pytest.mark.sampled(4)
def test_no_filter_keeps_the_process_busy(text):
    begun = time.thread_time()
    with pytest.raises(RefusedError):
        conditions.check(text)
    assert time.thread_time() - begun < 3.0


def test_a_filter_is_parsed_once_for_all_tables():
    parsed = conditions._tree.cache_info().misses
    for n in range(3):
        assert conditions.rebuilt("a = 1 OR a = 77", table=f"s.t{n}", types={"a": "int4"}).sql
    assert conditions._tree.cache_info().misses == parsed + 1


# -- control records --------------------------------------------------------------------------

COMMANDS = ["table-pause", "table-resume", "table-skip", "table-read", "table-resnapshot"]
OF_SNAPSHOTS = [
    "run-start",
    "run-end",
    "chunk",
    "void",
    "attempts",
    "fence",
    "window",
    "sweep",
    "wake",
]
TABLES = st.sampled_from([T, "public.b"]) | TEXTS | JSON
CONTROLS = st.fixed_dictionaries(
    {"type": st.sampled_from([*COMMANDS, *OF_SNAPSHOTS, "new-epoch"]) | JSON},
    optional={
        "table": TABLES,
        "until": NUMBERS | JSON,
        "keys": st.lists(TEXTS, max_size=3) | JSON,
        "reason": TEXTS | JSON,
        "offsets": JSON
        | st.dictionaries(TEXTS | st.sampled_from(list(START)), st.dictionaries(st.sampled_from(["0", "x", "-1"]), NUMBERS)),
        "run": st.sampled_from(["r1", "r2"]) | TEXTS,
        "tables": st.lists(TABLES, max_size=3) | JSON,
        "attempt": NUMBERS | JSON,
        "chunk": NUMBERS | JSON,
        "position": TEXTS | st.sampled_from(["00" * 24, "ff" * 24]),
        "windows": TEXTS,
        "mode": TEXTS,
        "id": TEXTS | JSON,
    },
)  # fmt: skip
RECORDS = st.lists(
    CONTROLS.map(lambda found: json.dumps(found).encode())
    | CONTROLS.flatmap(lambda found: damaged(json.dumps(found).encode()))
    | st.sampled_from([1, 1100, 100_000]).map(lambda n: b'{"type":"wake","x":' + b"[" * n)
    | st.binary(max_size=20),
    max_size=5,
)


@given(RECORDS)
@example([b'{"type":"table-read","table":"public.orders","until":"x","keys":7}'])
@example([b'{"type":"table-resnapshot","table":"public.orders","reason":"\\ud800"}'])
@example([b'{"type":"run-start","run":"\\ud800"}'])
@example([b'{"type":["table-pause"],"table":{}}'])
@example([b"[" * 100_000])
def test_control_records_leave_a_state_that_can_be_kept(blobs):
    state, refresh = streaming(p0=10), Refresh({"": MemoryCatalog({})}, {})
    marks = []

    def carry(some):
        carry_out(some, state, before=streaming(p0=10), start=START, refresh=refresh)

    with Quick():
        records = [record for blob in blobs if (record := decoded(blob)) is not None]
        left = guarded(records, carry, first=3, mark=lambda: None, note=marks.append)
        kept = stored_form.encode(state)
    assert left == []
    assert not marks or marks[-1] is None
    assert stored_form.encode(stored_form.decode(kept)) == kept


@FEWER
@given(RECORDS, RECORDS)
@example([b'{"type":"attempts","attempt":1e30}'], [b'{"type":"void","attempt":%d}' % 2**70])
@example([b'{"type":"run-start","run":"r1","tables":["public.a"]}'], [b'{"x":' + b"[" * 100_000])
def test_shards_stand_every_control_record(first, second):
    start = (
        b'{"type":"run-start","run":"r1","tables":["%s"],"windows":"w","attempt":4}' % T.encode()
    )
    with Quick():
        folded = window.fold(None, {window.CONTROL: [start, *first]}, shard=0)
        folded = window.fold(folded.state, {window.CONTROL: second}, shard=0)
        window.fold(folded.state, {window.CONTROL: [start]}, shard=0)


@given(st.lists(TEXTS | JSON, max_size=4))
def test_what_notifications_say_can_be_read_again(texts):
    for text in texts:
        rejection = signals.Rejection(str(text), "code", str(text), str(text))
        note = notifications.rejected(rejection, pipeline="shop", ts_ms=1)
        assert msgspec.json.decode(note.value())["id"] == str(text)
