"""`lakemark table rebuild`: what it says, what it asks, what it writes."""

import json

import pytest
import yaml

from lakemark.state import control_records, stored_form, tables
from lakemark.state.tables import PipelineState, TableState
from tests.kit.command_line import SMALL, invoke
from tests.kit.connector_settings import POSTGRES
from tests.kit.table_states import table_state

T = "public.orders"
TOPIC = "shop.public.orders"
STANDS = {
    "state": "errored",
    "code": "schema-incompatible",
    "topics": [TOPIC],
    "from_offsets": {TOPIC: {"0": 10, "1": 20}},
}


@pytest.fixture
def asked(kafka):
    kafka.ends = {(TOPIC, 0): 1510, (TOPIC, 1): 20}

    def ask(record, *options, **more):
        kafka.records = {T.encode(): json.dumps({"table": T, **record}).encode()}
        return invoke("table", "rebuild", T, *options, **more)

    return ask


def test_a_table_that_streams_leaves_nothing_out(folder, kafka, asked):
    result = asked({}, "--yes")
    assert result.exit_code == 0, result.output
    assert "leaves out" not in result.output
    assert "output topic" not in result.output
    ((topic, key, value),) = kafka.published
    said = json.loads(value)
    assert (topic, key, said["type"]) == ("shop.control", T.encode(), "table-rebuild")
    assert said["offsets"] == {}, "it may stop before it is told"


def test_one_that_stands_still_says_what_it_leaves_out(folder, kafka, asked):
    result = asked(STANDS, "--yes")
    assert result.exit_code == 0, result.output
    assert f"{TOPIC}-0: offsets 10 to 1509 (1,500 records)" in result.output
    ((_, _, value),) = kafka.published
    assert json.loads(value)["offsets"] == {TOPIC: {"0": 1510, "1": 20}}


@pytest.mark.parametrize(("answer", "sent"), [("y\n", 1), ("n\n", 0), ("", 0)])
def test_it_asks_and_no_answer_is_a_no(folder, kafka, asked, answer, sent):
    result = asked({}, input=answer)
    assert len(kafka.published) == sent
    assert result.exit_code == (0 if sent else 1)


def test_it_takes_a_database(folder, kafka, asked):
    plain = "\n".join(line for line in SMALL.splitlines() if not line.startswith("database"))
    (folder / "lakemark.yaml").write_text(plain)
    result = asked({}, "--yes")
    assert result.exit_code == 1
    assert "no-database:" in result.stderr
    assert "database.url" in result.stderr
    assert kafka.published == []


def test_of_several_connectors_it_takes_that_of_the_tables_own(folder, kafka):
    entries = []
    for name, database in (("shop", None), ("crm", {"url": "postgresql://u@h/d"})):
        (folder / f"{name}.json").write_text(json.dumps({**POSTGRES, "topic.prefix": name}))
        entries.append({"connector_file": f"{name}.json", "database": database})
    config = yaml.safe_load((folder / "lakemark.yaml").read_text())
    config.pop("database", None)
    config["source"] = {"connectors": entries}
    (folder / "lakemark.yaml").write_text(yaml.safe_dump(config))
    for name, code in (("shop", 1), ("crm", 0)):
        table = f"{name}.{T}"
        kafka.records = {table.encode(): json.dumps({"table": table}).encode()}
        result = invoke("table", "rebuild", table, "--yes")
        assert result.exit_code == code, result.output
        assert ("no-database:" in result.stderr) == bool(code)
    ((_, key, _),) = kafka.published
    assert key == f"crm.{T}".encode()


def test_rows_that_are_marked_as_deleted_are_said_to_be_lost(folder, asked):
    text = (folder / "lakemark.yaml").read_text().replace("./lake}", "./lake, deletes: soft}")
    (folder / "lakemark.yaml").write_text(text)
    assert "deletes: soft" in text
    assert "the new table is without them" in asked({}, "--yes").output


def test_a_store_whose_commits_have_no_condition_is_refused(folder, kafka, asked, monkeypatch):
    monkeypatch.setenv("ALLOW_UNSAFE_RENAME", "true")
    monkeypatch.setenv("allow_unsafe_rename", "true")
    result = asked({}, "--yes")
    assert result.exit_code == 1
    assert "lake-refused:" in result.stderr
    assert kafka.published == []


def test_readers_of_an_output_topic_are_warned(folder, asked):
    text = (folder / "lakemark.yaml").read_text() + "output: {topic_prefix: clean}\n"
    (folder / "lakemark.yaml").write_text(text)
    assert "should read it anew" in asked({}, "--yes").output


def test_a_rebuild_is_cancelled_if_there_is_one(folder, kafka, asked):
    result = asked({}, "--cancel")
    assert result.exit_code == 1
    assert "not-rebuilding:" in result.stderr
    result = asked({"rebuild": "rebuild-a-1"}, "--cancel")
    assert result.exit_code == 0, result.output
    ((_, _, value),) = kafka.published
    assert json.loads(value)["cancel"] is True


def test_a_source_that_went_back_in_time_is_not_mended_so(folder, kafka, asked):
    result = asked(STANDS | {"code": "position-regressed"}, "--yes")
    assert result.exit_code == 1
    assert "recover --new-epoch" in result.stderr
    assert kafka.published == []


# -- what the pipeline does with it -----------------------------------------------------------------


class Again:
    """Stands in for `Refresh`: which tables it was told of."""

    def __init__(self):
        self.told = []

    def again(self, table):
        self.told.append(table)


def carried(entry, **record):
    state = PipelineState(batch=7, offsets={TOPIC: {0: 50}}, tables={T: entry} if entry else {})
    refresh = Again()
    control_records.carry_out(
        [{"type": "table-rebuild", "table": T, **record}], state,
        before=state, start={TOPIC: {0: 40}}, refresh=refresh,
    )  # fmt: skip
    return state.tables.get(T), refresh.told


WRITTEN = {
    "engine": "spark-merge", "key": ["id"], "recorded": 6, "recorded_as": "stream", "pending": 3,
    "rows": 9, "bytes": 90, "committed_ms": 5, "topics": [TOPIC], "key_ends": ["id/high"],
}  # fmt: skip


def test_a_table_that_streams_catches_up_into_the_new_one():
    entry, told = carried(table_state(**WRITTEN), reason="another engine")
    assert (entry.state, entry.progress.from_offsets) == (tables.CATCHING_UP, {TOPIC: {0: 40}})
    assert entry.files.rebuild.startswith("rebuild-")
    assert entry.files.rebuild.endswith("-7")
    assert entry.files.rebuild_why == "another engine"
    assert "rebuilt" in entry.repair.resnapshot
    assert "another engine" in entry.repair.resnapshot
    assert entry.repair.resnapshot_since == 7
    assert not WRITTEN.keys() & stored_form.flat(entry).keys() - {"topics", "rebuild_old"}
    assert told == [T]


def test_one_that_stands_still_skips_to_the_end_and_keeps_its_reason():
    stood = table_state(state=tables.ERRORED, code="schema-incompatible", **WRITTEN)
    entry, _ = carried(stood, offsets={TOPIC: {"0": 60}})
    assert (entry.state, entry.progress.skip_to) == (tables.PAUSED, {TOPIC: {0: 60}})
    assert entry.files.rebuild
    state = PipelineState(batch=9, tables={T: entry})
    assert tables.end_skips(state, {TOPIC: {0: 60}}) == [T]
    assert entry.state == tables.STREAMING
    assert "rebuilt" in entry.repair.resnapshot
    assert tables.rebuilt(state) == []
    entry.repair.were_read(until=9)
    assert tables.rebuilt(state) == [T]


@pytest.mark.parametrize(
    ("entry", "record"),
    [
        (None, {}),
        (TableState(state=tables.ERRORED, code="x"), {}),
        (TableState(state=tables.PAUSED), {"offsets": "all"}),
    ],
    ids=["unknown", "no offsets", "no offsets that count"],
)
def test_what_cannot_be_carried_out_changes_nothing(entry, record, logs):
    found, told = carried(entry, **record)
    assert found is None or (found.files.rebuild, found.repair.resnapshot) == ("", "")
    assert told == []
    assert any(line["event"] == "table.not_rebuilt" for line in logs)


def test_only_a_whole_table_takes_the_place():
    since = {"rebuild": "rebuild-a-4", "resnapshot": "", "resnapshot_since": -1}
    state = PipelineState(
        tables={
            "a.whole": table_state(**since),
            "a.unread": table_state(**since | {"resnapshot": "it is being rebuilt"}),
            "a.stops": table_state(state=tables.ERRORED, **since),
            "a.catches": table_state(state=tables.CATCHING_UP, **since),
            "a.none": TableState(),
        }
    )
    assert tables.rebuilt(state) == ["a.whole"]


def test_rebuilds_have_names_of_their_own_and_leave_the_former_one_to_be_deleted():
    first, _ = carried(table_state(**WRITTEN), id="one")
    names = {first.files.rebuild}
    for command in ("one", "../..", "two\udcff", ""):
        entry, _ = carried(table_state(rebuild="rebuild-old-1", **WRITTEN), id=command)
        assert entry.files.rebuild_over == ["rebuild-old-1"]
        assert entry.files.rebuild.replace("-", "").isalnum()
        names.add(entry.files.rebuild)
    assert len(names) == 4


def test_a_rebuild_that_is_cancelled_leaves_the_old_table_in_doubt():
    """Its rows are told apart by its own key, whatever the new table's is: else it must stop."""
    begun, _ = carried(table_state(**WRITTEN), id="one")
    first = begun.files.rebuild
    begun.state, begun.files.key, begun.files.key_ends, begun.files.engine = (
        "streaming",
        ["n"],
        [],
        "task-merge",
    )
    begun, _ = carried(begun, id="two")
    begun.files.key = ["m"]
    second = begun.files.rebuild
    entry, _ = carried(begun, cancel=True)
    assert (entry.files.rebuild, entry.files.rebuild_over, entry.files.recorded) == (
        "",
        [first, second],
        -1,
    )
    assert (entry.files.key, entry.files.key_ends, entry.files.engine) == (
        ["id"],
        ["id/high"],
        "spark-merge",
    )
    assert entry.files.rebuild_old is None
    assert "cancelled" in entry.repair.resnapshot
    entry, _ = carried(table_state(**WRITTEN), cancel=True)
    assert (entry.repair.resnapshot, entry.files.recorded) == ("", 6)


def test_what_was_lost_is_made_again_under_another_name():
    state = PipelineState(batch=9)
    entry = table_state(rebuild="rebuild-a-4", rebuild_why="why", committed_ms=5, recorded=8)
    tables.lost_rebuild(state, entry)
    assert entry.files.rebuild not in {"", "rebuild-a-4"}
    assert (entry.files.rebuild_over, entry.files.rebuild_why) == (["rebuild-a-4"], "why")
    assert (entry.size.committed_ms, entry.files.recorded, entry.repair.resnapshot_since) == (
        0,
        -1,
        9,
    )


def test_a_new_checkpoint_does_not_pause_a_table_whose_pause_a_rebuild_lifted():
    said = [{"type": kind, "table": T} for kind in ("table-pause", "table-rebuild")]
    known = {T: TableState(state=tables.PAUSED, topics=[TOPIC])}
    state = control_records.first_state(said, known, control=2, places={})
    assert state.tables == {}
