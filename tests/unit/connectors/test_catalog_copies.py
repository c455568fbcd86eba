"""A copy that goes by what looks at PostgreSQL's catalog say stays right."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lakemark.connectors.postgres.catalog_differences import differences
from lakemark.connectors.postgres.catalog_facts import (
    ColumnFacts,
    TableFacts,
)
from tests.kit.catalog_facts import (
    PRIMARY,
    READ_AGAIN,
    STOP,
    source,
)

# --- a copy that goes by the differences --------------------------------------------------------

MOODS = ("sad", "ok")


class Model:
    """A table of a database with its rows, and a copy that has events and what is read again.

    Rows by key; the copy's by the names of their columns, the table's by their numbers.
    """

    def __init__(self, *, toast):
        self.ids = itertools.count(1000)
        self.labels = dict(zip((1, 2), MOODS, strict=True))
        self.published, self.membership = True, next(self.ids)
        self.copy, self.swapped = {}, False
        self._make(toast=toast)

    def _make(self, *, toast):
        self.oid = self.filenode = next(self.ids)
        self.toast = next(self.ids) if toast else 0
        self.xid = next(self.ids)
        named = [("id", "integer"), ("a", "integer"), ("b", "integer"), ("mood", "mood")]
        self.columns = {
            number: ColumnFacts(number, name, kind, xmin=self.xid, default=next(self.ids))
            for number, (name, kind) in enumerate(named, 1)
        }
        self.last, self.rows = 4, {}

    def facts(self):
        table = TableFacts(
            oid=self.oid,
            name="public.t",
            filenode=self.filenode,
            toast=self.toast,
            columns=tuple(self.columns[number] for number in sorted(self.columns)),
            key=(1,),
            unique_keys=(PRIMARY,),
            identity_columns=(1,),
            labels={"mood": tuple(self.labels.items())},
            published=self.published,
            published_by=(self.membership,) if self.published else (),
        )
        return source(table)

    def shown(self, row):
        return {
            column.name: self.labels[row[number]] if column.type == "mood" else row[number]
            for number, column in self.columns.items()
        }

    def source(self):
        return {key: self.shown(row) for key, row in self.rows.items()}

    def read_again(self):
        self.copy = self.source()

    def is_right(self):
        if self.rows.keys() != self.copy.keys():
            return False
        return all(
            self.copy[key].get(name) == value
            for key, row in self.source().items()
            for name, value in row.items()
        )

    def free(self, wanted):
        """The number of a column that may be changed."""
        numbers = [n for n, c in self.columns.items() if n > 1 and c.type == "integer"]
        return numbers[wanted % len(numbers)] if numbers else None

    def touch(self, number, **changed):
        self.columns[number] = replace(self.columns[number], xmin=next(self.ids), **changed)

    def move(self, *, by_alter):
        self.filenode = next(self.ids)
        if by_alter and self.toast:
            self.toast = next(self.ids)
        for number, column in list(self.columns.items()):
            if column.missing is not None:
                self.touch(number, missing=None)

    # -- what is in the log

    def put(self, key, value):
        self.rows[key] = {
            n: key if n == 1 else 1 + value % 2 if c.type == "mood" else value + n
            for n, c in self.columns.items()
        }
        if self.published:
            self.copy[key] = {**self.copy.get(key, {}), **self.shown(self.rows[key])}

    def truncate(self, *_):
        self.rows.clear()
        self.filenode = next(self.ids)
        if self.published:
            self.copy.clear()

    # -- what is not

    def add(self, *_):
        self._new(f"c{next(self.ids)}", lambda key: None)

    def add_with_default(self, _, value):
        self._new(f"c{next(self.ids)}", lambda key: value, missing=str(value), default=True)

    def add_with_values(self, *_):
        self._new(f"c{next(self.ids)}", lambda key: key * 10)
        self.move(by_alter=True)

    def _new(self, name, value, *, missing=None, default=False):
        self.last += 1
        made = next(self.ids) if default else 0
        self.columns[self.last] = ColumnFacts(
            self.last, name, "integer", missing=missing, default=made, xmin=next(self.ids)
        )
        for key, row in self.rows.items():
            row[self.last] = value(key)

    def drop(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            del self.columns[number]
            for row in self.rows.values():
                del row[number]

    def make_anew(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            name = self.columns[number].name
            self.drop(wanted, 0)
            self._new(name, lambda key: None)

    def rename(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, name=f"c{next(self.ids)}")

    def swap(self, wanted, _):
        first, second = self.free(wanted), self.free(wanted + 1)
        if first == second or self.swapped:  # twice between two looks cannot be seen
            return
        self.swapped = True
        names = self.columns[first].name, self.columns[second].name
        self.touch(first, name=names[1])
        self.touch(second, name=names[0])

    def compute(self, wanted, value):
        number = self.free(wanted)
        if number is not None:
            self.move(by_alter=True)
            default = self.columns[number].default
            self.touch(number, default=next(self.ids) if default else 0)
            for row in self.rows.values():
                row[number] = value - (row[number] or 0)

    def rename_label(self, *_):
        self.labels[1] = f"l{next(self.ids)}"

    def make_table_anew(self, *_):
        self._make(toast=bool(self.toast))

    def leave_publication(self, *_):
        self.published = False

    def enter_publication(self, *_):
        if not self.published:
            self.published, self.membership = True, next(self.ids)

    # -- what changes no value

    def vacuum_full(self, *_):
        self.move(by_alter=False)

    def set_statistics(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number)

    def set_default(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, default=next(self.ids))

    def widen(self, wanted, value):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, modifier=value, default=next(self.ids))


LOGGED = (Model.put, Model.truncate)
SILENT = (
    *(Model.add, Model.add_with_default, Model.add_with_values, Model.make_anew, Model.rename),
    *(Model.swap, Model.compute, Model.rename_label, Model.make_table_anew),
    *(Model.leave_publication, Model.enter_publication),
)
HARMLESS = (Model.vacuum_full, Model.set_statistics, Model.set_default, Model.widen, Model.drop)
ARGUMENTS = st.tuples(st.integers(1, 5), st.integers(1, 50))
EDITS = st.tuples(st.sampled_from((*LOGGED, Model.put, *SILENT, *HARMLESS)), ARGUMENTS)
HARMLESS_EDITS = st.tuples(st.sampled_from(HARMLESS), ARGUMENTS)


def filled(*, toast):
    model = Model(toast=toast)
    for key in (1, 2, 3):
        model.put(key, key)
    return model


@given(st.lists(st.tuples(EDITS, st.booleans()), max_size=12), st.booleans())
def test_a_copy_that_is_read_again_when_it_is_said_is_right(edits, toast):
    model = filled(toast=toast)
    before = model.facts()
    for (edit, arguments), looks in [*edits, ((Model.enter_publication, (0, 0)), True)]:
        edit(model, *arguments)
        if looks:
            now = model.facts()
            actions = {d.action for d in differences(before, now)}
            if READ_AGAIN in actions:
                model.read_again()
            assert STOP in actions or model.is_right()
            before, model.swapped = now, False


@given(st.lists(st.tuples(EDITS, st.booleans()), max_size=6), st.lists(HARMLESS_EDITS, max_size=8),
       st.booleans())  # fmt: skip
def test_what_changes_no_value_is_not_read_again(edits, harmless, toast):
    model = filled(toast=toast)
    for (edit, arguments), _ in edits:
        edit(model, *arguments)
    before = model.facts()
    model.read_again()
    for edit, arguments in harmless:
        if edit is Model.vacuum_full and any(
            c.missing is not None and not c.default for c in model.columns.values()
        ):
            continue
        edit(model, *arguments)
        now = model.facts()
        assert READ_AGAIN not in {d.action for d in differences(before, now)}
        assert model.is_right()
        before = now


@given(st.lists(HARMLESS_EDITS, max_size=8))
def test_with_a_toast_table_these_are_told_apart_whenever_somebody_looks(harmless):
    model = filled(toast=True)
    before = model.facts()
    for edit, arguments in harmless:
        edit(model, *arguments)
    assert READ_AGAIN not in {d.action for d in differences(before, model.facts())}
    assert model.is_right()
