"""What is stored of a state is read again, also what older versions stored."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import StateVersionError
from lakemark.state import progress, stored_form, tables
from lakemark.state.stored_form import PARTS
from lakemark.state.table_parts import BEFORE, StoredPosition
from lakemark.state.tables import LeftOut, PipelineState, TableState
from tests.kit.golden import GOLDEN
from tests.kit.table_states import flat_form, table_state

T, TOPIC = "public.orders", "shop.public.orders"
OLD = GOLDEN / "state_format_4.json"
"""Every field of a table and of the state is something else than as it begins."""


def as_json(value):
    return json.loads(msgspec.json.encode(value))


LATER = {"disagrees", "hidden_nulls", "maybe_null"}  # what is not in the stored one


def test_a_state_of_format_4_means_what_it_meant():
    stored = OLD.read_bytes()
    state, raw = stored_form.decode(stored), json.loads(stored)
    assert as_json(flat_form(stored_form.encode(state), 4)) == {
        **raw,
        "begun_at": 0,
        "logs": {},
        "schema_changes": {},
        "proofs": {},
        "cutting": {},
        "held": 0,
        "deferred": False,
    }
    entry = state.tables[T]
    for field in msgspec.structs.fields(TableState):
        if field.name in LATER:
            continue
        part = getattr(entry, field.name)
        assert part != getattr(TableState(), field.name), field.name
        for inner in msgspec.structs.fields(PARTS[field.name]) if field.name in PARTS else ():
            if inner.name in LATER:
                continue
            assert getattr(part, inner.name) != getattr(PARTS[field.name](), inner.name), inner.name
    assert (entry.pending.batch, entry.pending.over) == (7, 8)
    assert (entry.progress.from_offsets, entry.size.rows) == ({TOPIC: {0: 10, 1: 11}}, 100)
    assert (entry.files.recorded, entry.repair.reread_keys) == (12, {"[1,2]": 7})


def test_it_is_stored_in_the_new_form_from_then_on():
    state = stored_form.decode(OLD.read_bytes())
    again = stored_form.encode(state)
    assert stored_form.decode(again) == state
    assert json.loads(again)["format"] == tables.FORMAT
    assert json.loads(again)["tables"][T].keys() >= PARTS.keys()


def test_a_record_of_the_progress_topic_stays_flat_and_is_read_by_either():
    state = stored_form.decode(OLD.read_bytes())
    record = progress.record_of(T, state)
    old = json.loads(OLD.read_bytes())["tables"][T]
    assert json.loads(record) == {"table": T, "batch": 12, **old}
    for name, entry in state.tables.items():
        assert progress.tables_of({name.encode(): progress.record_of(name, state)}) == {name: entry}


def test_no_two_parts_have_a_field_of_one_name():
    names = [field.encode_name for kind in PARTS.values() for field in msgspec.structs.fields(kind)]
    head = [f.name for f in msgspec.structs.fields(TableState) if f.name not in PARTS]
    assert len({*names, *head}) == len(names) + len(head)


POSITIONS = st.builds(StoredPosition, st.sampled_from(["00" * 20, "0a" * 20]), st.integers(0, 9))
OFFSETS = st.dictionaries(
    st.sampled_from(["t.a", "t.b"]), st.dictionaries(st.integers(0, 3), st.integers(0, 9))
)
ENTRIES = st.builds(
    table_state,
    state=st.sampled_from([tables.STREAMING, tables.PAUSED, tables.ERRORED]),
    topics=st.lists(st.sampled_from(["t.a", "t.b"]), unique=True),
    from_offsets=OFFSETS,
    high_waters=st.dictionaries(st.just("t.a"), st.dictionaries(st.integers(0, 3), POSITIONS)),
    skip_to=st.none() | OFFSETS,
    rows=st.integers(0, 9),
    key=st.lists(st.sampled_from(["id", "n"]), unique=True),
    pending=st.integers(-1, 3),
    reread_keys=st.dictionaries(st.sampled_from(["[1]", "[2]"]), st.integers(0, 3)),
    resnapshot=st.sampled_from(["", "why"]),
)
STATES = st.builds(
    PipelineState,
    batch=st.integers(-1, 9),
    tables=st.dictionaries(st.sampled_from([T, '"a.b".c']), ENTRIES),
    left=st.dictionaries(st.just("public.left"), st.builds(LeftOut, ENTRIES, st.booleans())),
)


@given(STATES)
def test_a_state_survives_each_form(state):
    assert stored_form.decode(stored_form.encode(state)) == state
    old = json.dumps(flat_form(stored_form.encode(state), 4)).encode()
    assert stored_form.decode(old) == state


def test_a_copy_is_equal_and_shares_nothing():
    state = stored_form.decode(OLD.read_bytes())
    before, copy = stored_form.encode(state), stored_form.copied(state)
    assert copy == state
    copy.tables[T].repair.doubt_keys(["[3]"], batch=13)
    copy.tables[T].progress.advance([TOPIC], {TOPIC: {0: 99}}, {}, {})
    copy.offsets[TOPIC][0] = 99
    assert stored_form.encode(state) == before


def test_a_newer_state_is_refused_by_name():
    newer = json.dumps(json.loads(stored_form.encode(PipelineState())) | {"format": 99})
    with pytest.raises(StateVersionError) as caught:
        stored_form.decode(newer.encode())
    assert "99" in caught.value.message
    assert caught.value.hint


def test_tables_of_a_state_that_did_not_note_it_count_as_complete():
    """Nobody can tell; what is new from then on is noted."""
    made = PipelineState(
        tables={"public.a": TableState()}, left={"public.b": LeftOut(TableState())}
    )
    old = json.dumps(flat_form(stored_form.encode(made), 1)).encode()
    state = stored_form.decode(old)
    assert [entry.repair.complete for entry in state.entries()] == [BEFORE] * 2
    state.tables["public.c"] = TableState()
    again = stored_form.decode(stored_form.encode(state))
    assert again.tables["public.c"].repair.complete == ""
    assert again.tables["public.a"].repair.complete == BEFORE
