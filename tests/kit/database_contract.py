"""What every `Database` promises. The test module of one inherits `DatabaseContract`."""

import pickle
from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

import msgspec
import pytest

from lakemark.connectors import registry
from lakemark.connectors.catalog_changes import Action
from lakemark.connectors.connector_traits import SETTING
from lakemark.connectors.database import (
    ChunkReader,
    Database,
    OpenWindow,
    TableQuestions,
    Watermark,
    WindowWriter,
    visible,
)
from lakemark.errors import RefusedError, TableError
from lakemark.model.key_ranges import WHOLE, KeyRange, halves
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import qualified

TABLE, GONE, SIGNALS = "public.t", "public.gone", "public.debezium_signal"
MOST = 12


class Served(Protocol):
    """A database with one table, of `id` (a whole number, its key) and `v` (a text)."""

    database: Database
    only_three: str
    """A filter for the rows whose `v` is ``v3``."""
    no_filter: str
    """A filter that the database must refuse."""

    def put(self, key: int, v: str) -> None:
        """Writes a row, in a transaction of its own."""

    def drop(self) -> None:
        """Drops its table."""

    def create(self) -> None:
        """Makes its table, empty."""


@dataclass
class Asked:
    """Who is asked; sessions end with the test."""

    table: str
    reader: ChunkReader
    questions: TableQuestions
    windows: WindowWriter


def read(asked: Asked, span: KeyRange = WHOLE, **more) -> dict[int, str]:
    found = asked.reader.read(asked.table, span=span, **more).found
    rows = {row["id"]: row["v"] for row in found.rows.to_pylist()}
    assert sorted(found.keys.to_pylist()) == sorted(b"[%d]" % key for key in rows)
    return rows


class DatabaseContract:
    """Inherit, and say which database it is."""

    qualifier = ""
    """Of the database's tables, see `QualifiedDatabase`."""

    @property
    def table(self) -> str:
        """The table's name as the database is asked for it."""
        return qualified(self.qualifier, TABLE)

    @property
    def gone(self) -> str:
        """The name of a table that is not there."""
        return qualified(self.qualifier, GONE)

    @abstractmethod
    def served(self, *args, **kwargs):
        """A fixture: the database, `MOST` rows in its table."""

    @pytest.fixture
    def asked(self, served: Served):
        database = served.database
        windows = database.window_writer(qualified(self.qualifier, SIGNALS), name="windows")
        found = Asked(self.table, database.reader(), database.questions(name="questions"), windows)
        yield found
        found.reader.close()
        found.questions.drop()
        found.windows.drop()

    def test_the_end_of_its_log_goes_on_with_a_commit_and_can_be_read_again(self, served: Served):
        end = served.database.log_end("", name="waits")
        before = end.place()
        served.put(99, "later")
        after = end.place()
        assert served.database.log_place(before.text) == before != after
        assert served.database.log_place(after.text) == after
        assert not after.is_sent([], server="shop")
        assert not end.move()  # without a signal table nothing is written
        end.drop()

    @pytest.mark.parametrize("text", ["", " ", "now", "0/", "binlog.1", "1-2", "0/1 0/2", "a:b:c"])
    def test_what_is_no_place_of_its_log_is_refused_with_an_example(self, served: Served, text):
        with pytest.raises(RefusedError, match="is no position") as refused:
            served.database.log_place(text)
        assert refused.value.code == "bad-value"
        assert refused.value.hint

    def test_the_catalog_has_the_table_as_its_events_have_it(self, served: Served):
        found = served.database.schemas([self.table, self.gone])
        assert list(found) == [self.table]
        schema = found[self.table]
        assert schema.table == self.table
        assert (list(schema.by_name), list(schema.key)) == (["id", "v"], ["id"])
        assert served.database.schemas(None, captured={self.table}) == found
        assert served.database.schemas(None, captured=set()) == {}
        assert self.table in served.database.table_names()

    def test_it_answers_the_doctor_also_where_the_connector_is_unknown(self, served: Served):
        checks = served.database.checks
        assert (checks[0], len({*checks})) == ("database", len(checks))
        found = served.database.examine(None, streams=False, chosen=False)
        assert found.tables is None
        assert "database" in {finding.check for finding in found.findings}

    def test_its_address_is_known_by_its_scheme(self, served: Served):
        traits = served.database.traits
        assert traits.is_of(traits.example)
        for scheme in traits.schemes:
            address = DatabaseConfig.model_construct(url=f"{scheme}://u@h/d")
            assert registry.traits_of(None, address) is traits
            assert registry.database_kind(None, address).traits is traits
        others = [one for one, _ in registry.DATABASES.values()]
        assert sum(one.is_of(traits.example) for one in others) == 1

    def test_its_connector_s_settings_are_judged_whatever_they_are(self, served: Served):
        traits = served.database.traits
        for settings in (
            {},
            dict.fromkeys((*traits.naming, *traits.shown, "slot.name"), "${file:x}"),
        ):
            assert all(problem.path for problem in traits.problems(settings))
            assert {finding.check for finding in traits.findings(settings)} <= {SETTING}
            assert isinstance(traits.has_reader(settings), bool)
        assert traits.unread_log
        assert traits.silent_log

    def test_who_reads_the_log_can_be_asked_again_and_again(self, served: Served):
        watch = served.database.log_watch(name="watch", within=timedelta(seconds=10))
        for _ in range(2):
            reader = watch.reader()
            assert reader is None or (reader.trouble is not None) == (reader.active is None)
            assert watch.there(frozenset({self.table, self.gone})) == {self.table}
            watch.close()

    def test_looks_at_the_catalog_say_what_becomes_of_a_table(self, served: Served):
        database, kept = served.database, None

        def look():
            nonlocal kept
            now = database.look({self.table}.__contains__, before=kept)
            found = database.differences(kept, now)
            stored = msgspec.json.encode(now.kept(kept))
            kept = msgspec.json.decode(stored, type=database.look_form)
            assert msgspec.json.encode(kept) == stored, "what is kept stays what it is"
            again = [one for one in found if one.action is Action.READ_AGAIN]
            assert all(one.hint == f"lakemark snapshot start {one.table}" for one in again)
            changes = [one for one in found if one.action is not Action.NOTHING and one.table]
            return now, [(one.table, one.kind, one.action) for one in changes]

        now, changes = look()
        assert [*now.tables] == [self.table]
        assert changes == [], "the first look only remembers"
        table = now.tables[self.table]
        assert (table.name, table.column_names, table.has_key) == (TABLE, ("id", "v"), True)
        served.put(99, "a row is no change of the catalog")
        ends = [now.end]
        now, changes = look()
        ends.append(now.end)
        assert (changes, ends == sorted(ends)) == ([], True)
        served.drop()
        now, changes = look()
        assert ([*now.tables], changes) == ([], [(self.table, "table-dropped", Action.GONE)])
        gone = msgspec.json.encode(table.forgotten())
        kept = kept.having({self.table: msgspec.json.decode(gone, type=database.table_form)})
        served.create()
        now, changes = look()
        assert [(name, action) for name, _, action in changes] == [(self.table, Action.READ_AGAIN)]
        assert [*now.tables] == [self.table]

    @pytest.mark.parametrize("surrogate", [None, "v"])
    @pytest.mark.parametrize("rows", [1, 5, 100])
    def test_ranges_of_a_cut_hold_every_row_once(self, served, asked, rows, surrogate):
        cut = served.database.cut(self.table, rows, surrogate=surrogate)
        assert (cut.spans[0].after, cut.spans[-1].upto) == (None, None)
        assert (len(cut.spans) == 1) == (rows > MOST)
        assert cut.fingerprint == served.database.schemas([self.table])[self.table].fingerprint()
        served.put(99, "later")
        found = [read(asked, span, surrogate=surrogate) for span in cut.spans]
        assert sum(map(len, found)) == MOST + 1
        whole = {key: v for part in found for key, v in part.items()}
        assert whole == {**{key: f"v{key}" for key in range(MOST)}, 99: "later"}
        assert max(map(len, found)) <= rows + 1

    def test_a_range_is_cut_again_within_its_ends(self, served, asked):
        first, *_ = served.database.cut(self.table, 6).spans
        again = served.database.cut(self.table, 2, within=first).spans
        assert (again[0].after, again[-1].upto) == (first.after, first.upto)
        assert len(again) == 3
        parts = [read(asked, span) for span in again]
        assert {key for part in parts for key in part} == read(asked, first).keys()

    def test_a_range_has_halves_while_it_has_two_keys(self, asked):
        spans = [WHOLE]
        for _ in range(6):
            middles = [
                asked.reader.middle(self.table, s, condition=None, surrogate=None) for s in spans
            ]
            spans = [h for s, m in zip(spans, middles, strict=True) for h in halves(s, m)]
        parts = [read(asked, span) for span in spans]
        assert sorted(map(len, parts)) == [1] * MOST

    def test_keys_of_a_list_are_found_or_absent(self, served, asked):
        columns = asked.questions.key_columns(self.table)
        assert [column.name for column in columns] == ["id"]
        texts = served.database.key_texts([b"[3]", b"[77]"], columns)
        rows = asked.reader.read(self.table, keys=texts)
        assert rows.absent is not None
        assert {rows.found.schema.table, rows.absent.schema.table} == {self.table}
        assert rows.found.rows.to_pylist() == [{"id": 3, "v": "v3"}]
        assert rows.absent.keys.to_pylist() == [b"[77]"]
        assert rows.absent.rows.to_pylist() == [{"id": 77}]
        with pytest.raises(TableError) as caught:
            served.database.key_texts([b"[null]"], columns)
        assert caught.value.code == "key-unreadable"

    def test_a_filter_is_of_its_rows(self, served, asked):
        condition = asked.questions.condition(self.table, served.only_three)
        assert read(asked, condition=condition) == {3: "v3"}
        assert served.database.cut(self.table, 1, condition=condition).spans == (WHOLE,)
        served.database.check_condition(served.only_three)
        for ask in (
            served.database.check_condition,
            lambda t: asked.questions.condition(self.table, t),
        ):
            with pytest.raises(RefusedError) as caught:
                ask(served.no_filter)
            assert caught.value.hint

    def test_a_table_that_is_not_there_is_said_to_be_gone(self, served, asked):
        assert asked.questions.key_columns(self.gone) == []
        for ask in (asked.reader.read, served.database.reasons_against):
            with pytest.raises(TableError) as caught:
                ask(self.gone)
            assert caught.value.code == "table-gone"
        assert read(asked), "the reader goes on"

    def test_a_read_shows_the_windows_that_were_open_and_what_was_committed_before(
        self, served, asked
    ):
        def window(*, closes=None, last=False):
            found = OpenWindow(uuid4(), "run", uuid4())
            opened = asked.windows.write(closes=closes, opens=None if last else found)
            return found, opened

        before = asked.reader.read(self.table).found
        served.put(50, "before the first window")
        first, one = window()
        served.put(51, "between")
        second, other = window(closes=first)
        after = asked.reader.read(self.table).found
        assert isinstance(one, Watermark)
        assert isinstance(other, Watermark)
        assert (one.window, other.window) == (str(first.uuid), str(second.uuid))
        assert visible(before.proof, [one, other]) is None
        assert visible(after.proof, [one, other]) == other
        assert visible(pickle.loads(pickle.dumps(after.proof)), [one]) == one
        assert {50, 51} <= {row["id"] for row in after.rows.to_pylist()}
        assert before.proof.life == after.proof.life == one.after.life != ""
        _, last = window(closes=second, last=True)
        assert not isinstance(last, Watermark)
        assert visible(last, [one, other]) == other
        assert asked.questions.blocker(before.proof)
        knows = served.database.traits.reads_know_their_place
        for proof in (before.proof, after.proof, one.after, last):
            assert bool(proof.place) == knows
        assert one.position(1) < other.position(1) < one.position(2)
        if knows:
            assert one.bound <= after.proof.place
            assert before.proof.place < one.bound
