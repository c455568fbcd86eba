"""Control records move the tables' states, one after the other."""

import json
from typing import Any

import pytest

from lakemark.model.proof import TableProof
from lakemark.state import progress, stored_form, tables
from lakemark.state.control_records import carry_out, first_state
from lakemark.state.schema_refresh import Refresh
from lakemark.state.tables import PipelineState, TableState
from tests.kit.memory_pipeline import Broker, MemoryCatalog
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of
from tests.kit.table_states import table_state
from tests.unit.state.test_tables import TOPIC, T, streaming

START = {TOPIC: {0: 10}}


def told(state: PipelineState, *records: dict[str, Any]) -> PipelineState:
    """The state after the records; it begins at offset 10."""
    refresh = Refresh({"": MemoryCatalog({})}, {})
    carry_out(records, state, before=streaming(p0=10), start=START, refresh=refresh)
    return state


def pause(table: str = T) -> dict[str, Any]:
    return {"type": "table-pause", "table": table}


def test_a_pause_and_a_resume_keep_the_first_offset_not_applied():
    entry = told(streaming(p0=10), pause()).tables[T]
    assert (entry.state, entry.code, entry.progress.from_offsets) == (
        tables.PAUSED,
        "paused",
        START,
    )
    entry = told(streaming(p0=10), pause(), {"type": "table-resume", "table": T}).tables[T]
    assert (entry.state, entry.progress.from_offsets) == (tables.CATCHING_UP, START)


def test_a_skip_waits_for_its_offsets():
    skip = {"type": "table-skip", "table": T, "offsets": {TOPIC: {"0": 12}}}
    assert told(streaming(p0=10), pause(), skip).tables[T].progress.skip_to == {TOPIC: {0: 12}}
    assert told(streaming(p0=10), skip).tables[T].progress.skip_to is None, "it runs"


def test_keys_that_were_read_again_are_no_longer_in_doubt_and_others_are():
    state = streaming(p0=10)
    state.tables[T].repair.doubt_keys(["[1]", "[2]"], batch=3)
    told(state, {"type": "table-read", "table": T, "until": 3, "keys": ["[1]"]})
    assert state.tables[T].repair.reread_keys == {"[2]": 3}
    told(state, {"type": "table-read", "table": T, "until": 3})
    assert state.tables[T].repair.reread_keys == {}


def verified(table: str = T, **more: Any) -> dict[str, Any]:
    said = {"run": "v", "turn_ms": 5, "ended_ms": 9, "batch": 3, "compared": True, "proved": True}
    return {"type": "table-verified", "table": table, **said, **more}


def test_a_table_is_proved_unless_it_is_not_known_or_being_made_anew():
    state = told(streaming(p0=10), verified(position="ab"))
    assert (state.proofs[T].proved_ms, state.proofs[T].position) == (5, "ab")
    assert told(streaming(p0=10), verified("public.other")).proofs == {}
    state = streaming(p0=10)
    state.tables[T].files.begin_rebuild("r", "why")
    assert told(state, verified()).proofs == {}, "its files are about to be others"


def test_a_table_that_left_out_events_is_proved_no_more():
    state = told(streaming(p0=10), verified(), pause())
    told(state, {"type": "table-skip", "table": T, "offsets": {TOPIC: {"0": 10}}})
    state.batch = 7
    assert tables.end_skips(state, START) == [T]
    assert (state.proofs[T].proved_ms, state.proofs[T].files_since) == (0, 7)
    assert told(state, verified(batch=6)).proofs[T].proved_ms == 0, "it was read before"
    assert told(state, verified(batch=7)).proofs[T].proved_ms == 5


def test_proofs_outlive_a_checkpoint():
    proof = TableProof(proved_ms=5, position="ab", files_since=7)
    state = first_state([], {}, control=3, places={}, proofs={T: proof})
    assert state.proofs == {T: TableProof(proved_ms=5, position="ab")}
    again = stored_form.decode(stored_form.encode(state))
    assert again.proofs == state.proofs


def test_the_progress_topic_has_the_proof_in_the_table_s_record():
    state = told(streaming(p0=10), verified(position="ab", found={"missing": 2}))
    record = progress.record_of(T, state)
    assert json.loads(record)["proof"]["position"] == "ab"
    assert progress.proofs_of({T.encode(): record, b"_pipeline": b"{}"}) == state.proofs
    assert progress.tables_of({T.encode(): record}).keys() == {T}
    assert progress.proofs_of({T.encode(): b"no JSON"}) == {}
    bare = progress.record_of(T, streaming(p0=10))
    assert "proof" not in json.loads(bare)
    assert progress.proofs_of({T.encode(): bare}) == {}


def test_a_table_is_in_doubt_and_an_epoch_begins():
    lost = {"type": "table-resnapshot", "table": T, "reason": "a gap"}
    state = told(streaming(p0=10), lost, {"type": "new-epoch"})
    assert told(streaming(p0=10), lost).tables[T].repair.resnapshot == "a gap"
    assert state.epochs == [START]
    assert "epoch" in state.tables[T].repair.resnapshot


def test_runs_are_armed_in_between():
    state = told(streaming(p0=10), {"type": "run-start", "run": "r1", "tables": [T]}, pause())
    assert state.runs == {"r1"}


@pytest.mark.parametrize("kind", ["pause", "resume", "skip", "read", "resnapshot"])
def test_a_table_that_nobody_knows_is_left_unknown(kind: str):
    state = told(streaming(p0=10), {"type": f"table-{kind}", "table": "public.nothing"})
    assert state == streaming(p0=10)


def test_a_table_that_may_be_read_just_now_is_read_anew():
    """Its rows have not come yet; without a run nobody has read it, and nothing is in doubt."""
    doubt = {"type": "table-resnapshot", "table": "public.new", "reason": "it was rewritten"}
    start = {"type": "run-start", "run": "r1", "tables": ["public.new"]}
    entry = told(streaming(p0=10), start, doubt).tables["public.new"]
    assert (entry.repair.resnapshot, entry.repair.resnapshot_since >= 0) == (
        "it was rewritten",
        True,
    )
    assert "public.new" not in told(streaming(p0=10), doubt).tables


def test_a_resume_that_names_a_code_finds_the_table_stopped_for_it():
    stop = {"type": "table-stop", "table": T, "code": "not-published"}
    named = {**resume(), "code": "not-published"}
    assert told(streaming(p0=10), stop, named).tables[T].state == "catching-up"
    assert told(streaming(p0=10), {**stop, "code": "other"}, named).tables[T].state == "errored"
    assert told(streaming(p0=10), stop, pause(), named).tables[T].state == "paused"


def test_a_stop_is_obeyed_unless_a_person_has_paused_the_table():
    stop = {"type": "table-stop", "table": T, "code": "not-published", "reason": "r", "hint": "h"}
    stopped = told(streaming(p0=10), stop).tables[T]
    assert (stopped.state, stopped.code, stopped.reason, stopped.hint) == (
        "errored",
        "not-published",
        "r",
        "h",
    )
    assert stopped.progress.from_offsets == {TOPIC: {0: 10}}
    assert told(streaming(p0=10), pause(), stop).tables[T].code == "paused"
    assert told(streaming(p0=10), {**stop, "code": ""}).tables[T].state == "streaming"
    new = told(streaming(p0=10), {**stop, "table": "public.new"}).tables["public.new"]
    assert new.state == "errored"


def test_a_table_without_rows_and_events_is_complete_when_a_run_has_read_it():
    read = {"type": "table-read", "table": "public.empty", "until": -1}
    assert told(streaming(p0=10), read).tables["public.empty"].repair.complete == "snapshot"
    assert "public.empty" not in told(streaming(p0=10), {**read, "keys": ["[1]"]}).tables
    assert "" not in told(streaming(p0=10), {**read, "table": ""}).tables


# --- a new checkpoint beside old records ------------------------------------------------------

PAUSED = table_state(state="paused", topics=[TOPIC], from_offsets={TOPIC: {0: 7}}, rows=3)
RUNS = TableState(topics=[TOPIC])


def resume(table: str = T) -> dict[str, Any]:
    return {"type": "table-resume", "table": table}


SKIP = {"type": "table-skip", "table": T, "offsets": {}}

# What the checkpoint before said of the table, the old records, and whether it is paused now.
LEFT = {
    "paused, and its command is no longer kept": (PAUSED, [], True),
    "paused by the last command": (PAUSED, [resume(), pause()], True),
    "a pause that no batch has seen": (RUNS, [pause()], True),
    "a resume that no batch has seen": (PAUSED, [pause(), resume()], False),
    "a skip": (PAUSED, [pause(), SKIP], False),
    "it streamed": (RUNS, [], False),
    "it was resumed": (RUNS, [pause(), resume()], False),
    "errored": (TableState(state="errored", topics=[TOPIC]), [], False),
    "of another table": (RUNS, [pause("public.other")], False),
    "nothing of it ever came": (TableState(), [pause()], False),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_new_checkpoint_keeps_what_people_have_not_taken_back(name: str):
    entry, records, stays = LEFT[name]
    armed = {"type": "run-start", "run": "r1", "tables": [T]}
    doubt = {"type": "table-resnapshot", "table": T}
    state = first_state([armed, *records, doubt], {T: entry}, control=9, places={TOPIC: {0: 4}})
    assert (state.batch, state.control, state.runs, state.epochs) == (-1, 9, set(), [])
    assert list(state.tables) == ([T] if stays else [])
    if stays:
        found = state.tables[T]
        assert (found.state, found.code, found.progress.from_offsets) == (
            "paused",
            "paused",
            {TOPIC: {0: 4}},
        )
        assert found.size.rows == entry.size.rows
        assert T in found.hint


def test_epochs_are_counted_on():
    epoch = {"type": "new-epoch"}
    assert len(first_state([epoch, pause(), epoch], {}, control=3, places={}).epochs) == 2


def test_a_paused_table_stays_so_under_a_new_checkpoint_and_then_has_everything(tmp_path):
    schemas = {t: schema_of(t, id="int8", v="text") for t in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    for table in (ORDERS, ITEMS):
        shop.put("c", 10, 1, table=table, v="a")
        shop.put("c", 11, 2, table=table, v="b")
    topic = f"shop.{ORDERS}"
    shop.records = [pause(ORDERS), {"type": "table-pause", "table": ITEMS}, resume(ITEMS)]
    known = {ORDERS: TableState(topics=[topic]), ITEMS: TableState(topics=[f"shop.{ITEMS}"])}
    first = first_state(shop.records, known, control=3, places={topic: {0: 1}})
    shop.checkpoint.begin(first)
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}
    assert shop.state.tables[ORDERS].state == tables.PAUSED
    assert not (tmp_path / "lake" / "public" / "orders").exists()
    shop.records.append(resume(ORDERS))
    shop.run()
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values(ORDERS) == {2: "b"}, "from where the first held record was"


@pytest.mark.parametrize(
    ("entry", "code", "rebuilt"),
    [
        (TableState(), "", True),
        (TableState(state=tables.CATCHING_UP), "", True),
        (TableState(state=tables.PAUSED, code="paused"), "", False),
        (TableState(state=tables.PAUSED, code="skipping"), "", False),
        (TableState(state=tables.ERRORED, code="too-many-bad-records"), "", False),
        (TableState(state=tables.ERRORED, code="key-changed"), "key-changed", True),
        (TableState(state=tables.ERRORED, code="columns-unseen"), "", True),
        (TableState(state=tables.ERRORED, code="null-key"), "key-changed", False),
        (TableState(state=tables.PAUSED, code="paused"), "key-changed", False),
        (TableState(), "key-changed", False),
    ],
)
def test_a_policy_s_rebuild_leaves_a_table_alone_that_a_person_or_another_error_has_stopped(
    entry, code, rebuilt
):
    state = PipelineState(batch=7, tables={"t": entry})
    record = {
        "type": "table-rebuild", "table": "t", "id": "x", "reason": "it must", "offsets": {},
        "code": code, "automatic": True,
    }  # fmt: skip
    was = entry.state, entry.code
    refresh = Refresh({"": MemoryCatalog({})}, {})
    carry_out([record], state, before=PipelineState(), start={}, refresh=refresh)
    assert bool(entry.files.rebuild) == rebuilt
    if not rebuilt:
        assert (entry.state, entry.code) == was
        assert bool(entry.repair.resnapshot) == (not code), "what the look saw is not forgotten"


def test_a_policy_s_rebuild_takes_no_pause_back_in_a_new_checkpoint():
    pause = {"type": "table-pause", "table": "t"}
    rebuild = {"type": "table-rebuild", "table": "t", "automatic": True, "code": "key-changed"}
    known = {"t": TableState(state=tables.PAUSED, topics=["x"])}
    for records, stays in (
        ([pause, rebuild], True),
        ([pause, {**rebuild, "automatic": False, "code": ""}], False),
        ([pause, {"type": "table-resume", "table": "t", "code": "columns-unseen"}], True),
    ):
        first = first_state(records, known, control=2, places={})
        assert ("t" in first.tables) == stays
