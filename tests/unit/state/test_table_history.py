"""The definitions of a table by what the catalog and the schema topic tell of it."""

import pytest

from lakemark.connectors.mysql.positions import pack
from lakemark.model import positions
from lakemark.model.definitions import Definition
from lakemark.state.table_history import MOST, MOST_STRANGERS, TableHistory
from tests.kit.told_tables import TABLE, catalog_of

WHOLE, DAYS, MICROS = (catalog_of({"v": kind}) for kind in ("whole", "days", "micros"))
EPOCH = positions.epoch_number("mysql", 0)


def place(pos):
    return pack(EPOCH, 1, pos)


@pytest.fixture
def history():
    found = TableHistory("modes")
    found.has(TABLE, WHOLE, now=1.0)
    return found


def says(history, pos, schema, *, reached=0):
    newest = place(reached) if reached else positions.LOWEST
    return history.says(TABLE, Definition(place(pos), schema, told=True), reached=lambda _: newest)


def known(history, schema, again=()):
    """Where the definitions begin, 0 for the first, and what is read by them."""
    found = history.of_batch({TABLE: schema}, again).get(TABLE)
    if found is None:
        return None
    first, *others = found
    return {0: first.schema} | {int.from_bytes(one.position[8:16]): one.schema for one in others}


def test_a_table_of_which_nothing_is_told_is_read_by_the_catalog(history):
    assert known(history, WHOLE) is None


def test_a_record_puts_a_definition_at_its_place_while_the_catalog_is_as_it_was(history):
    assert not says(history, 50, DAYS, reached=40)
    assert known(history, WHOLE) == {0: WHOLE, 50: DAYS}


def test_a_record_behind_what_was_read_is_late_unless_it_changes_nothing(history):
    assert says(history, 50, DAYS, reached=60)
    assert not says(history, 70, catalog_of({"v": "days"}), reached=80)


def test_a_new_catalog_changes_nothing_until_the_record_comes_however_long_that_takes(history):
    history.has(TABLE, DAYS, now=2.0)
    assert known(history, DAYS) == {0: WHOLE}
    assert not says(history, 50, DAYS, reached=40)
    assert known(history, DAYS) == {0: WHOLE, 50: DAYS}


def test_a_look_says_from_where_on_the_catalog_counts_if_no_record_comes(history):
    history.has(TABLE, DAYS, now=2.0)
    history.looked(1.5, place(70))
    assert known(history, DAYS) == {0: WHOLE}, "it began before the catalog was read"
    history.looked(3.0, place(80))
    history.looked(4.0, place(90))
    assert known(history, DAYS) == {0: WHOLE, 80: DAYS}


def test_a_record_takes_the_place_of_what_a_look_has_found(history):
    history.has(TABLE, DAYS, now=2.0)
    history.looked(3.0, place(80))
    assert not says(history, 50, MICROS, reached=40)
    assert known(history, DAYS) == {0: WHOLE, 50: MICROS}, "it may stand behind the look as well"
    assert not says(history, 60, DAYS, reached=40)
    assert known(history, DAYS) == {0: WHOLE, 50: MICROS, 60: DAYS}


def test_a_catalog_that_was_read_before_a_record_came_is_never_put_behind_it(history):
    history.has(TABLE, DAYS, now=2.0)
    assert not says(history, 50, MICROS)
    history.looked(3.0, place(80))
    assert known(history, DAYS) == {0: WHOLE, 50: MICROS}


def test_where_the_server_does_not_say_where_its_log_ends_no_look_counts(history):
    assert not says(history, 50, DAYS)
    history.has(TABLE, MICROS, now=2.0)
    history.looked(3.0, pack(EPOCH, 0, 0))
    assert known(history, MICROS) == {0: WHOLE, 50: DAYS}


def test_events_that_do_not_fit_are_read_by_the_catalog_until_the_record_comes(history):
    history.has(TABLE, DAYS, now=2.0)
    assert known(history, DAYS, again={TABLE}) is None
    assert known(history, DAYS) is None, "also in the next batches"
    assert says(history, 50, DAYS, reached=60), "those of before were read by it, too"
    assert known(history, DAYS) == {0: WHOLE, 50: DAYS}


def test_tables_that_are_behind_are_late_also_with_a_record_that_changes_nothing(history):
    history.has(TABLE, DAYS, now=2.0)
    assert known(history, DAYS, again={TABLE}) is None
    assert says(history, 50, catalog_of({"v": "whole"}), reached=60)


def test_a_bad_value_is_read_by_what_was_told_if_that_is_the_catalogs(history):
    says(history, 50, DAYS)
    history.has(TABLE, DAYS, now=2.0)
    assert known(history, DAYS, again={TABLE}) == {0: WHOLE, 50: DAYS}


def test_what_all_have_passed_goes(history):
    says(history, 50, DAYS)
    says(history, 70, MICROS)
    history.passed([(TABLE, place(40)), ("shop.other", place(90)), (TABLE, None)])
    assert known(history, MICROS) == {0: WHOLE, 50: DAYS, 70: MICROS}
    history.passed([(TABLE, place(50))])
    assert known(history, MICROS) == {0: DAYS, 70: MICROS}
    history.passed([(TABLE, place(75))])
    assert known(history, MICROS) is None


def test_no_more_than_so_many_are_kept(history):
    for at in range(2 * MOST):
        says(history, 50 + at, (DAYS, MICROS)[at % 2])
    assert len(history.tables[TABLE]) == MOST
    for at in range(2 * MOST_STRANGERS):
        name = f"shop.t{at}"
        told = Definition(place(at), DAYS, told=True)
        assert not history.says(name, told, reached=lambda _: place(99))
    assert len(history.tables) <= MOST_STRANGERS + 2
    assert TABLE in history.tables


def test_a_table_that_is_told_before_the_catalog_knows_it_has_its_first_definition(history):
    new = "shop.new"
    for pos, schema in ((50, WHOLE), (60, DAYS)):
        history.says(new, Definition(place(pos), schema, told=True), reached=lambda _: b"")
    history.has(new, DAYS, now=2.0)
    found = history.of_batch({new: DAYS})[new]
    assert [one.schema for one in found] == [WHOLE, DAYS]
    assert history.of_batch({}) == {}


def test_another_process_goes_on_with_what_is_stored(history):
    history.read = {0: 7}
    says(history, 50, DAYS)
    again = TableHistory.of(history.to_json(), "modes")
    again.has(TABLE, MICROS, now=1.0)
    assert known(again, MICROS) == {0: WHOLE, 50: DAYS}
    assert again.read == {0: 7}
    again.looked(2.0, place(90))
    assert known(again, MICROS) == {0: WHOLE, 50: DAYS, 90: MICROS}
    assert again.differs_from(history)
    assert not history.copied().differs_from(history)


def test_under_other_modes_and_in_another_epoch_the_catalog_counts_alone(history):
    history.read = {0: 7}
    says(history, 50, DAYS)
    other = TableHistory.of(history.to_json(), "other")
    assert (other.tables, other.read) == ({}, {0: 7})
    history.is_in_epoch(0)
    assert history.tables
    history.is_in_epoch(1)
    assert not history.tables
    history.has(TABLE, WHOLE, now=3.0)
    assert known(history, WHOLE) is None


@pytest.mark.parametrize("blob", [None, b"", b"{", b'{"tables": {"t": []}}', b'{"tables": 5}'])
def test_what_cannot_be_read_is_as_if_it_was_not_there(blob):
    assert TableHistory.of(blob, "modes").tables == {}
