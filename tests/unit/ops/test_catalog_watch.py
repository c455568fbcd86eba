"""What follows from what the catalog says, and that a look is made up for after a crash."""

import dataclasses
import threading
import time
from itertools import pairwise

import msgspec
import pytest

from lakemark.connectors.catalog_changes import Action, Difference
from lakemark.connectors.connector import parse
from lakemark.connectors.postgres.catalog_differences import MENDED, named
from lakemark.connectors.postgres.catalog_facts import ColumnFacts, PartFacts, SourceFacts
from lakemark.connectors.postgres.postgres_database import PostgresDatabase
from lakemark.connectors.postgres.postgres_publication import publication_of
from lakemark.errors import DependencyError, PipelineError
from lakemark.model import positions
from lakemark.ops import catalog_watch
from lakemark.ops.catalog_watch import CatalogWatch, Seen, records
from lakemark.ops.status import CatalogChange
from lakemark.settings.config import Config
from lakemark.state.tables import (
    CATCHING_UP,
    ERRORED,
    PAUSED,
    STREAMING,
    LeftOut,
    PipelineState,
    TableState,
)
from tests.kit.catalog_looks import (
    CONFIG,
    SETTINGS,
    AskedDatabase,
    T,
    U,
    facts,
    source,
    state,
    told,
)
from tests.kit.table_states import table_state

pytestmark = pytest.mark.usefixtures("logs")


def difference(action, kind="rewritten", table=T, what="it was rewritten"):
    return Difference(table, kind, action, what, "mend it")


# -- what follows ---------------------------------------------------------------------------------


def test_a_table_is_read_again_once_with_all_reasons():
    changes = [
        difference(Action.READ_AGAIN),
        difference(Action.NOTHING),
        difference(Action.READ_AGAIN, what="so was that"),
    ]
    assert list(records(changes, state(a=TableState()), there=[T])) == [
        ("table-resnapshot", T, {"reason": "it was rewritten; so was that"})
    ]


def test_a_table_of_which_nothing_has_come_does_not_stop_and_its_reading_begins_again():
    changes = [difference(Action.READ_AGAIN), difference(Action.STOP, "not-published")]
    assert [kind for kind, _, _ in records(changes, state(), there=[T])] == ["table-resnapshot"]


def test_a_table_whose_first_delete_would_be_lost_stops_before_it():
    stop = difference(Action.STOP, "identity-without-key", what="no key")
    changes = [dataclasses.replace(stop, at_once=True)]
    why = {"code": "identity-without-key", "reason": "no key", "hint": "mend it"}
    assert list(records(changes, state(), there=[T])) == [("table-stop", T, why)]


@pytest.mark.parametrize(
    ("entry", "stops"),
    [
        (TableState(), True),
        (TableState(state=CATCHING_UP), True),
        (TableState(state=ERRORED, code="lake-unavailable", retried=True), True),
        (TableState(state=ERRORED, code="schema-incompatible"), False),
        (TableState(state=ERRORED, code="not-published"), False),
        (TableState(state=PAUSED, code="paused"), False),
    ],
)
def test_a_stop_is_said_until_it_holds_and_a_pause_stays(entry, stops):
    changes = [difference(Action.STOP, "not-published"), difference(Action.READ_AGAIN)]
    kinds = [kind for kind, _, _ in records(changes, state(a=entry), there=[T])]
    assert kinds == ["table-stop"] * stops + ["table-resnapshot"]


@pytest.mark.parametrize(
    ("entry", "key", "stops"),
    [
        (table_state(key=["id"]), ("n", "id"), True),
        (table_state(key=["id", "n"]), ("n", "id"), False),
        (TableState(), ("n", "id"), False),
        (table_state(key=["id"]), (), True),
        (TableState(), (), True),
    ],
    ids=["old key", "new key already", "no rows yet", "other columns of one name", "the same"],
)
def test_a_key_that_events_told_of_first_does_not_stop_a_table_again(entry, key, stops):
    changes = [dataclasses.replace(difference(Action.STOP, "key-changed"), key=key)]
    found = list(records(changes, state(a=entry), there=[T]))
    assert [kind for kind, _, _ in found] == ["table-stop"] * stops


def test_what_was_mended_goes_on_and_is_read_again():
    stopped = {"state": ERRORED, "reason": "the publication does not have it"}
    now = state(
        a=table_state(code="not-published", **stopped), b=table_state(code="not-published", **stopped),
        c=table_state(code="schema-incompatible", **stopped), d=TableState(state=STREAMING),
        e=table_state(code="not-published", **stopped),
    )  # fmt: skip
    changes = [difference(Action.STOP, "not-published", table=U)]
    there = [T, U, "public.c", "public.d"]
    assert [
        (kind, table) for kind, table, _ in records(changes, now, there=there, mended=MENDED)
    ] == [
        ("table-resnapshot", T),
        ("table-resume", T),
    ]
    assert list(records(changes, now, there=there, commanded={T}, mended=MENDED)) == [], (
        "a batch has to come first"
    )


def test_a_table_that_the_configuration_left_out_does_not_stop():
    changes = [dataclasses.replace(difference(Action.STOP), at_once=True)]
    left = PipelineState(left={T: LeftOut(TableState())})
    assert list(records(changes, left, there=[T])) == []


# -- which names count ----------------------------------------------------------------------------


def test_changes_come_under_one_name():
    part = PartFacts("public.part", filenode=5)
    whole = facts("public.whole", oid=2, kind="p", filenode=0, parts={3: part})
    leaf = facts("public.part", oid=3)
    hidden = {"published": False}
    by_root = source(whole, msgspec.structs.replace(leaf, **hidden), via_root=True)
    by_leaf = source(msgspec.structs.replace(whole, **hidden), leaf)
    other = source(msgspec.structs.replace(facts(), **hidden), via_root=True)
    assert set(named(by_root).tables) == {"public.whole"}
    assert set(named(by_leaf).tables) == {"public.part"}
    assert set(named(other).tables) == {T}


# -- looks ----------------------------------------------------------------------------------------


REWRITTEN = facts(filenode=11, columns=("id", "v"))


def renamed():
    return source(facts(columns=("id", "w")))


def test_people_are_told_of_changes_also_by_the_next_process(looks):
    watch = looks.watch()
    watch.look()
    assert told(looks) == []
    type(looks).now = renamed()
    watch.look()
    (change,) = looks.told[-1].changes
    assert (change.table, change.action) == (T, "read-again")
    assert "v" in change.reason
    assert looks.told[-1].looked_ms >= change.at_ms > 0
    watch.look()
    assert len(looks.told[-1].changes) == 1
    looks.watch().look()
    assert looks.told[-1].changes == (change,)


def test_people_are_told_once_of_a_state_that_lasts_and_again_when_it_comes_again(looks):
    wrong, right = source(facts(identity="i", identity_columns=(2,))), looks.now
    stop = (T, "identity-without-key", "stop")
    watch = looks.watch()
    type(looks).now = wrong
    for _ in range(2):
        watch.look()
        assert told(looks).count(stop) == 1
    watch = looks.watch()  # another process
    for now, count in ((wrong, 1), (right, 1), (wrong, 2)):
        type(looks).now = now
        watch.look()
        assert told(looks).count(stop) == count


def test_a_look_that_fails_says_so_and_keeps_what_was_seen(looks, monkeypatch):
    def broken(*_, **__):
        raise DependencyError("the database is away", code="database-unavailable")

    watch = looks.watch()
    watch.look()
    type(looks).now = renamed()
    watch.look()
    seen = looks.told[-1]
    with monkeypatch.context() as patch:
        patch.setattr(AskedDatabase, "look", broken)
        watch.try_to_look()
    assert looks.told[-1] == msgspec.structs.replace(seen, reason="the database is away")
    watch.try_to_look()
    assert looks.told[-1].reason == ""


def test_the_oldest_changes_are_forgotten():
    made = [CatalogChange(T, "k", "nothing", str(n), "", n) for n in range(60)]
    seen = Seen(SourceFacts(), changes=tuple(made[40:]))
    kept = Seen.after(seen, SourceFacts(), PipelineState(), made[:40]).changes
    assert [int(one.reason) for one in kept] == list(range(catalog_watch.KEPT))


@pytest.mark.parametrize("soon", [True, False])
def test_events_of_another_form_bring_the_next_look_at_once(looks, soon, monkeypatch):
    monkeypatch.setattr(catalog_watch, "AT_MOST_EVERY_S", 0.001)
    looked = threading.Event()
    watch = looks.watch()
    with watch.running():
        assert watch.looked.wait(10)
        monkeypatch.setattr(watch, "try_to_look", looked.set)
        if soon:
            watch.look_soon()
        assert looked.wait(10 if soon else 0.1) == soon


def test_the_first_look_only_remembers(looks):
    watch = looks.watch()
    assert not watch.has_seen(T)
    watch.look()
    assert watch.has_seen(T)
    assert looks.said == []
    assert Seen.of(looks.store.kept, PostgresDatabase).facts == looks.now.kept(None)


def test_a_change_while_nothing_ran_is_seen_by_the_next_start_once(looks):
    looks.watch().look()
    type(looks).now = renamed()
    looks.watch().look()
    looks.watch().look()
    assert looks.said == [("table-resnapshot", T)]


def test_what_could_not_be_said_is_said_by_the_next_look(looks):
    watch = looks.watch()
    watch.look()
    type(looks).now, type(looks).away = renamed(), True
    with pytest.raises(DependencyError):
        watch.look()
    type(looks).away = False
    watch.look()
    assert looks.said == [("table-resnapshot", T)]


def test_a_process_that_was_superseded_says_nothing(looks):
    watch = looks.watch()
    watch.look()
    type(looks).now, looks.store.owner = renamed(), False
    kept = looks.store.kept
    with pytest.raises(PipelineError):
        watch.look()
    assert (looks.said, looks.store.kept) == ([], kept)


@pytest.mark.parametrize("oid", [1, 2], ids=["the same", "another one"])
def test_a_table_that_is_there_again_is_read_again(looks, oid):
    """Nobody has looked at it meanwhile, also where it is the one that went."""
    watch = looks.watch()
    watch.look()
    type(looks).now = source()
    assert [change.action for change in watch.look()] == [Action.GONE]
    assert watch.look() == [], "that it is gone is said once"
    assert looks.said == []
    type(looks).now = source(facts(oid=oid))
    watch.look()
    assert looks.said == [("table-resnapshot", T)]
    watch.look()
    assert len(looks.said) == 1


def test_the_copy_of_a_table_that_went_keeps_what_its_columns_were_called(looks):
    watch = looks.watch()
    for tables in ([facts()], [], [facts(oid=2, columns=["id"])]):
        type(looks).now = source(*tables)
        watch.look()
    assert looks.said == [("table-resnapshot", T)]
    type(looks).now = source(facts(oid=2))
    watch.look()
    assert looks.said == [("table-resnapshot", T)] * 2, "rows have values of the former column"


@pytest.mark.parametrize(
    ("captured", "again", "reads"),
    [
        (True, facts(), False),
        (True, facts(oid=2), True),
        (True, facts(columns=("id", "w")), True),
        (False, facts(), True),
    ],
    ids=["the same", "another one", "renamed column", "not captured meanwhile"],
)
def test_a_table_that_was_left_out_is_compared_with_its_last_look(looks, captured, again, reads):
    """Its events were captured, so the same table is as complete as it was."""
    watch = looks.watch()
    watch.look()
    entry = looks.state.tables[T]
    type(looks).state = PipelineState(left={T: LeftOut(entry, captured)})
    type(looks).now = source()
    assert watch.look() == [], "it is not gone"
    watch.look()
    type(looks).state, type(looks).now = state(a=entry), source(again)
    looks.watch().look()
    assert looks.said == [("table-resnapshot", T)] * reads
    watch.look()
    assert len(looks.said) == reads


def test_a_look_that_fails_does_not_end_the_watch(looks, monkeypatch):
    def broken(*_, **__):
        raise DependencyError("the database is away", code="database-unavailable")

    watch = looks.watch()
    with monkeypatch.context() as patch:
        patch.setattr(AskedDatabase, "look", broken)
        watch.try_to_look()
    watch.try_to_look()
    assert watch.has_seen(T)


def test_what_a_version_before_has_kept_is_read(looks):
    """The form in which the slot's past stood beside the facts, and facts had none of their own."""
    here = source(facts(), slot_sent=4)
    gone = msgspec.structs.replace(facts("public.b", oid=5), oid=0)
    kept = {"facts": here, "gone": {U: gone}, "had_slot": True, "changes": [], "waiting": []}
    stored = msgspec.json.encode(kept)
    assert b'"had_slot":true,"changes"' in stored
    assert stored.count(b"had_slot") == 1
    looks.store.kept = stored
    seen = Seen.of(stored, PostgresDatabase)
    assert (seen.facts, seen.gone) == (here, {U: gone})
    type(looks).now = source(facts(), facts("public.b", oid=6))
    looks.state = state(a=TableState(), b=TableState())
    looks.watch().look()
    assert looks.said == [("table-resnapshot", U)], "another table has the name of one that went"


def test_a_slot_that_a_version_before_did_not_see_counts_as_lost(looks):
    away = source(facts(), facts("public.b", oid=5))
    looks.store.kept = msgspec.json.encode(
        {"facts": msgspec.structs.replace(away, slot_present=False)}
    )
    type(looks).now = away
    looks.watch().look()
    assert looks.said == [("table-resnapshot", T), ("table-resnapshot", U)]


def test_a_slot_that_comes_for_the_first_time_was_not_gone(looks):
    watch = looks.watch()
    here = source(facts())
    away = msgspec.structs.replace(here, slot_present=False)
    for now in (away, here, away):
        type(looks).now = now
        watch.look()
        assert looks.said == []
    type(looks).now = here
    watch.look()
    assert looks.said == [("table-resnapshot", T)]


def test_columns_that_are_numerics_are_those_of_the_newest_look_that_succeeded(looks, monkeypatch):
    watch = looks.watch()
    assert watch.numerics() == {}
    kinds = ("integer", "numeric", "numeric[]", "lake.price")
    columns = tuple(ColumnFacts(n, f"c{n}", kind) for n, kind in enumerate(kinds))
    type(looks).now = source(msgspec.structs.replace(facts(), columns=columns))
    watch.look()
    assert watch.numerics() == {T: {"c1"}}
    monkeypatch.setattr(AskedDatabase, "look", lambda *_, **__: 1 / 0)
    watch.try_to_look()
    assert watch.numerics() == {T: {"c1"}}


def test_how_far_the_log_is_is_not_kept(looks):
    """Else the look would be written every time."""
    watch = looks.watch()
    watch.look()
    kept = looks.store.kept
    type(looks).now = msgspec.structs.replace(looks.now, lsn=7)
    watch.look()
    assert looks.store.kept == kept


def test_a_stop_is_not_said_again_before_a_batch_has_seen_it(looks):
    type(looks).now = source(facts(identity="i", identity_columns=(2,)))
    watch = looks.watch()
    watch.look()
    watch.look()
    assert looks.said == [("table-stop", T)]
    looks.state.batch += 1
    watch.look()
    assert len(looks.said) == 2


def test_a_look_that_cannot_be_read_is_none(looks):
    looks.store.kept = b"{"
    looks.watch().look()
    assert Seen.of(looks.store.kept, PostgresDatabase).facts.tables.keys() == {T}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"plugin.name": "pgoutput", "publication.name": "p"}, "p"),
        ({"plugin.name": "pgoutput"}, "dbz_publication"),
        ({"publication.name": "p"}, ""),
        ({"plugin.name": "decoderbufs"}, ""),
    ],
)
def test_only_one_plugin_needs_a_publication(settings, name):
    """Debezium's default is the other one."""
    assert publication_of(settings) == name


# -- policies -------------------------------------------------------------------------------------


def policy(behavior):
    lake = {"path": "/nowhere/lake", "schema_changes": {"behavior": behavior}}
    return Config.model_validate({**CONFIG.model_dump(exclude_unset=True), "lake": lake})


CAPTURES = parse({**SETTINGS, "signal.data.collection": "public.signals"}, config=CONFIG)


@pytest.mark.parametrize(
    ("behavior", "expected"), [("exception", "table-stop"), ("evolve", "table-rebuild")]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_policy_s_word_waits_for_a_table_that_stands_still(
    looks, monkeypatch, behavior, expected, restarted
):
    monkeypatch.setattr(catalog_watch.brokers, "end_offsets", lambda *_: {"t": {0: 9}})
    running = TableState(topics=["t"])

    def watch():
        store, now = looks.store, lambda: looks.state
        return CatalogWatch(policy(behavior), CAPTURES, store, now, looks.told.append)

    type(looks).state = state(a=TableState(state=PAUSED, code="paused", topics=["t"]))
    made = watch()
    made.look()
    type(looks).now = source(facts(columns=("id",)))  # v was dropped
    for _ in range(2):
        made.look()
        assert looks.said == []
        assert len([one for one in looks.told[-1].changes if one.kind == "column-dropped"]) == 1
    type(looks).state = state(a=running)
    made = watch() if restarted else made
    made.look()
    first = [("table-resnapshot", T)] if expected == "table-rebuild" else []
    assert looks.said == [*first, (expected, T)]
    made.look()
    assert len(looks.said) == 1 + len(first)
    assert Seen.of(looks.store.kept, PostgresDatabase).waiting == ()


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("exception", ["table-stop"]),
        ("lenient", []),
        ("evolve", ["table-resnapshot", "table-rebuild"]),
    ],
)
def test_what_waits_is_judged_by_the_policy_of_the_day(looks, monkeypatch, then, expected):
    monkeypatch.setattr(catalog_watch.brokers, "end_offsets", lambda *_: {})
    type(looks).state = state(a=TableState(state=PAUSED, code="paused"))
    watch = CatalogWatch(policy("exception"), CAPTURES, looks.store, lambda: looks.state)
    watch.look()
    type(looks).now = source(facts(columns=("id",)))
    watch.look()
    type(looks).state = state(a=TableState())
    CatalogWatch(policy(then), CAPTURES, looks.store, lambda: looks.state).look()
    assert [kind for kind, _ in looks.said] == expected


def test_what_waits_for_a_table_that_was_made_anew_since_is_over(looks):
    type(looks).state = state(a=TableState(state=PAUSED, code="paused"))
    watch = CatalogWatch(policy("exception"), CAPTURES, looks.store, lambda: looks.state)
    watch.look()
    type(looks).now = renamed()
    watch.look()
    for entry in (table_state(rebuild="rebuild-a-1"), TableState()):
        type(looks).state = state(a=entry)
        watch.look()
    assert looks.said == [("table-resnapshot", T)], "when it was seen"


def test_what_waits_for_a_table_that_is_left_out_waits_until_it_is_back(looks):
    type(looks).state = state(a=TableState(state=PAUSED, code="paused"))
    watch = CatalogWatch(policy("exception"), CAPTURES, looks.store, lambda: looks.state)
    watch.look()
    type(looks).now = source(facts(columns=("id",)))
    watch.look()
    type(looks).state = PipelineState(left={T: LeftOut(TableState())})
    watch.look()
    type(looks).state = state(a=TableState())
    watch.look()
    assert looks.said == [("table-stop", T)]


@pytest.mark.parametrize("behavior", ["ignore", "exception"])
def test_a_table_that_is_being_made_gets_what_comes_whatever_its_policy(looks, behavior):
    """Its rows do; and those that chunks have brought already lack a new column's default."""
    type(looks).state = state(a=table_state(rebuild="rebuild-a-1"))
    watch = CatalogWatch(policy(behavior), CAPTURES, looks.store, lambda: looks.state)
    watch.look()
    before = facts(columns=("id", "v", "x")).columns[-1]
    column = msgspec.structs.replace(before, missing="5")
    table = facts()
    type(looks).now = source(msgspec.structs.replace(table, columns=(*table.columns, column)))
    watch.look()
    assert looks.said == [("table-resnapshot", T)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"row_filter": "(id > 5)"}, False),
        ({"column_list": ("id",)}, False),
        ({"column_list": ("id", "v")}, True),
        ({"key": (), "unique_keys": ()}, False),
        ({"published": False}, False),
    ],
)
def test_a_table_that_the_catalog_keeps_from_being_read_is_not_made_anew(looks, monkeypatch, changes, expected):  # fmt: skip
    monkeypatch.setattr(catalog_watch.brokers, "end_offsets", lambda *_: {})
    stopped = TableState(state=ERRORED, code="schema-incompatible", reason="it could not")
    type(looks).state = state(a=stopped)
    type(looks).now = source(facts(**changes))
    CatalogWatch(policy("lenient"), CAPTURES, looks.store, lambda: looks.state).look()
    assert (("table-rebuild", T) in looks.said) == expected


def test_a_rebuild_that_could_not_be_said_is_not_put_off(looks, monkeypatch):
    monkeypatch.setattr(catalog_watch.brokers, "end_offsets", lambda *_: {})
    type(looks).state = state(a=TableState(state=ERRORED, code="key-changed", reason="so"))
    watch = CatalogWatch(policy("lenient"), CAPTURES, looks.store, lambda: looks.state)
    type(looks).away = True
    for _ in range(3):
        with pytest.raises(DependencyError):
            watch.look()
    type(looks).away = False
    watch.look()
    assert looks.said == [("table-rebuild", T)]


def test_a_table_that_a_rebuild_does_not_help_is_rebuilt_ever_more_seldom(looks, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(catalog_watch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(catalog_watch.brokers, "end_offsets", lambda *_: {})
    watch = CatalogWatch(policy("lenient"), CAPTURES, looks.store, lambda: looks.state)
    at = []
    for batch in range(4000):
        stopped = TableState(state=ERRORED, code="key-changed", reason="it could not")
        type(looks).state = msgspec.structs.replace(state(a=stopped), batch=batch)
        clock[0] = 30.0 * batch
        before = len(looks.said)
        watch.look()
        if len(looks.said) > before:
            at.append(clock[0])
    waits = [later - earlier for earlier, later in pairwise(at)]
    assert waits[:5] == [30, 60, 120, 240, 480]
    assert set(waits[7:]) == {3600}


def test_how_it_is_kept_is_read_by_the_next_version_of_it(looks):
    """A look that another version has kept has nothing that waits."""
    looks.watch().look()
    kept = msgspec.json.decode(looks.store.kept)
    del kept["waiting"]
    looks.store.kept = msgspec.json.encode(kept)
    type(looks).now = renamed()
    looks.watch().look()
    assert looks.said == [("table-resnapshot", T)]


def test_a_look_says_when_it_began_and_where_the_log_ended_in_the_newest_epoch(looks):
    watch = looks.watch()
    assert watch.newest is None
    before = time.monotonic()
    watch.look()
    begun, end = watch.newest
    assert before <= begun <= time.monotonic()
    assert end == positions.of_epoch(0, looks.now.end)
    looks.state.epochs.append({})
    watch.look()
    assert watch.newest[1] == positions.of_epoch(1, looks.now.end)
