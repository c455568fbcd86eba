"""What every `Database` promises. The test module of one inherits `DatabaseContract`."""

import pickle
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import pytest

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


@dataclass
class Asked:
    """Who is asked; sessions end with the test."""

    reader: ChunkReader
    questions: TableQuestions
    windows: WindowWriter


def read(asked: Asked, span: KeyRange = WHOLE, **more) -> dict[int, str]:
    found = asked.reader.read(TABLE, span=span, **more).found
    rows = {row["id"]: row["v"] for row in found.rows.to_pylist()}
    assert sorted(found.keys.to_pylist()) == sorted(b"[%d]" % key for key in rows)
    return rows


class DatabaseContract:
    """Inherit, and say which database it is."""

    @abstractmethod
    def served(self, *args, **kwargs):
        """A fixture: the database, `MOST` rows in its table."""

    @pytest.fixture
    def asked(self, served: Served):
        database = served.database
        windows = database.window_writer(SIGNALS, name="windows")
        found = Asked(database.reader(), database.questions(name="questions"), windows)
        yield found
        found.reader.close()
        found.questions.drop()
        found.windows.drop()

    def test_the_catalog_has_the_table_as_its_events_have_it(self, served: Served):
        found = served.database.schemas([TABLE, GONE])
        assert list(found) == [TABLE]
        schema = found[TABLE]
        assert (list(schema.by_name), list(schema.key)) == (["id", "v"], ["id"])
        assert served.database.schemas(None, captured={TABLE}) == found
        assert served.database.schemas(None, captured=set()) == {}
        assert TABLE in served.database.table_names()

    def test_it_answers_the_doctor_also_where_the_connector_is_unknown(self, served: Served):
        checks = served.database.checks
        assert (checks[0], len({*checks})) == ("database", len(checks))
        found = served.database.examine(None, streams=False, chosen=False)
        assert found.tables is None
        assert "database" in {finding.check for finding in found.findings}

    @pytest.mark.parametrize("surrogate", [None, "v"])
    @pytest.mark.parametrize("rows", [1, 5, 100])
    def test_ranges_of_a_cut_hold_every_row_once(self, served, asked, rows, surrogate):
        cut = served.database.cut(TABLE, rows, surrogate=surrogate)
        assert (cut.spans[0].after, cut.spans[-1].upto) == (None, None)
        assert (len(cut.spans) == 1) == (rows > MOST)
        assert cut.fingerprint == served.database.schemas([TABLE])[TABLE].fingerprint()
        served.put(99, "later")
        found = [read(asked, span, surrogate=surrogate) for span in cut.spans]
        assert sum(map(len, found)) == MOST + 1
        whole = {key: v for part in found for key, v in part.items()}
        assert whole == {**{key: f"v{key}" for key in range(MOST)}, 99: "later"}
        assert max(map(len, found)) <= rows + 1

    def test_a_range_is_cut_again_within_its_ends(self, served, asked):
        first, *_ = served.database.cut(TABLE, 6).spans
        again = served.database.cut(TABLE, 2, within=first).spans
        assert (again[0].after, again[-1].upto) == (first.after, first.upto)
        assert len(again) == 3
        parts = [read(asked, span) for span in again]
        assert {key for part in parts for key in part} == read(asked, first).keys()

    def test_a_range_has_halves_while_it_has_two_keys(self, asked):
        spans = [WHOLE]
        for _ in range(6):
            middles = [asked.reader.middle(TABLE, s, condition=None, surrogate=None) for s in spans]
            spans = [h for s, m in zip(spans, middles, strict=True) for h in halves(s, m)]
        parts = [read(asked, span) for span in spans]
        assert sorted(map(len, parts)) == [1] * MOST

    def test_keys_of_a_list_are_found_or_absent(self, served, asked):
        columns = asked.questions.key_columns(TABLE)
        assert [column.name for column in columns] == ["id"]
        texts = served.database.key_texts([b"[3]", b"[77]"], columns)
        rows = asked.reader.read(TABLE, keys=texts)
        assert rows.found.rows.to_pylist() == [{"id": 3, "v": "v3"}]
        assert rows.absent is not None
        assert rows.absent.keys.to_pylist() == [b"[77]"]
        assert rows.absent.rows.to_pylist() == [{"id": 77}]
        with pytest.raises(TableError) as caught:
            served.database.key_texts([b"[null]"], columns)
        assert caught.value.code == "key-unreadable"

    def test_a_filter_is_of_its_rows(self, served, asked):
        condition = asked.questions.condition(TABLE, served.only_three)
        assert read(asked, condition=condition) == {3: "v3"}
        assert served.database.cut(TABLE, 1, condition=condition).spans == (WHOLE,)
        served.database.check_condition(served.only_three)
        for ask in (served.database.check_condition, lambda t: asked.questions.condition(TABLE, t)):
            with pytest.raises(RefusedError) as caught:
                ask(served.no_filter)
            assert caught.value.hint

    def test_a_table_that_is_not_there_is_said_to_be_gone(self, served, asked):
        assert asked.questions.key_columns(GONE) == []
        for ask in (asked.reader.read, served.database.reasons_against):
            with pytest.raises(TableError) as caught:
                ask(GONE)
            assert caught.value.code == "table-gone"
        assert read(asked), "the reader goes on"

    def test_a_read_shows_the_windows_that_were_open_and_what_was_committed_before(
        self, served, asked
    ):
        def window(*, closes=None, last=False):
            found = OpenWindow(uuid4(), "run", uuid4())
            opened = asked.windows.write(closes=closes, opens=None if last else found)
            return found, opened

        before = asked.reader.read(TABLE).found
        served.put(50, "before the first window")
        first, one = window()
        served.put(51, "between")
        second, other = window(closes=first)
        after = asked.reader.read(TABLE).found
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
        knows = served.database.reads_know_their_place
        for proof in (before.proof, after.proof, one.after, last):
            assert bool(proof.place) == knows
        assert one.position(1) < other.position(1) < one.position(2)
        if knows:
            assert one.bound <= after.proof.place
            assert before.proof.place < one.bound
