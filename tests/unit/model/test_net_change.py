"""Net changes and key changes, case by case. `model/test_changes_properties.py` has the laws."""

from dataclasses import replace

import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import net_change
from lakemark.model.net_change import (
    KeyArrived,
    KeyLeft,
    NetChange,
    RowState,
    alone,
    apply_step,
    compose,
)

B = frozenset({"b"})
BC = frozenset({"b", "c"})


def at(major, minor=None):
    return lsns.pack(0, major, 1000 + major if minor is None else minor)


def event(op, number, *, row=None, unavailable=frozenset(), position=None):
    return net_change.upsert(
        op=op,
        position=position or at(number),
        source_ts=number,
        row=number if row is None else row,
        unavailable=unavailable,
    )


def gone(number, *, row=None, position=None):
    row = number if row is None else row
    return net_change.delete(position=position or at(number), source_ts=number, row=row)


def read(number):
    return net_change.incremental_read(position=at(number), source_ts=number, row=number)


def own(number):
    position = lsns.pack(0, 0, number)
    return net_change.upsert(
        op="r", position=position, source_ts=number, row=number, own_snapshot=True
    )


# -- stretches ------------------------------------------------------------------------------------


def test_a_whole_image_needs_nothing_before_it():
    assert compose(event("c", 1, unavailable=B), event("u", 2)) == event("u", 2)


def test_a_patch_takes_columns_from_before_it():
    net = compose(event("c", 1), event("u", 2, unavailable=B))
    assert (net.row, net.cell("b"), net.unavailable, net.base) == (2, 1, frozenset(), False)


def test_a_whole_row_has_no_incarnation_to_be_told_from():
    assert [event(op, 1).barrier for op in "cu"] + [own(1).barrier] == [None] * 3
    assert [event(op, 1, unavailable=B).barrier for op in "cu"] == [at(1), None]


def test_a_patch_alone_keeps_what_the_table_has():
    net = compose(event("u", 1, unavailable=BC), event("u", 2, unavailable=B))
    assert (net.unavailable, net.missing, net.base) == (B, B, True)


def test_what_no_event_knows_stays_unavailable_and_says_of_which_incarnation():
    net = compose(event("c", 1, unavailable=BC), event("u", 2, unavailable=B))
    assert (net.unavailable, net.base, net.barrier) == (B, False, at(1))


def test_nothing_survives_a_delete():
    net = compose(compose(event("c", 1), gone(2)), event("u", 3, unavailable=B))
    assert (net.unavailable, net.base, net.barrier) == (B, False, None)


def test_a_read_inserts_only_where_no_row_is():
    assert compose(event("u", 1), read(2)) == event("u", 1)
    after_delete = compose(gone(1), read(2))
    assert (after_delete.action, after_delete.row) == (net_change.UPSERT, 2)


def test_a_read_helps_out_a_patch_where_the_table_has_no_row():
    net = compose(read(1), event("u", 2, unavailable=B))
    assert (net.base, net.unavailable, net.missing, net.cell("b")) == (True, B, frozenset(), 1)
    assert alone(net).unavailable == frozenset()


def test_what_a_read_has_given_is_not_missing_after_more_patches_of_it():
    """Unavailable as long as the table has a row to take it from; not where it has none."""
    net = compose(compose(read(1), event("u", 2, unavailable=BC)), event("u", 3, unavailable=B))
    assert (net.unavailable, net.missing, net.base) == (B, frozenset(), True)
    assert (net.cell("b"), net.cell("c"), alone(net).unavailable) == (1, 3, frozenset())


def test_what_only_patches_say_is_missing_where_the_table_has_no_row():
    net = compose(event("u", 2, unavailable=BC), event("u", 3, unavailable=B))
    assert (net.unavailable, net.missing) == (B, B)
    assert alone(net).unavailable == B


def test_a_read_counts_for_nothing_where_an_event_said_that_there_is_a_row():
    """Also where the patch after it was composed with it first."""
    patch = event("u", 1, unavailable=B)
    later = compose(read(2), event("u", 3, unavailable=B))
    assert compose(patch, later) == compose(compose(patch, read(2)), event("u", 3, unavailable=B))
    assert (compose(patch, later).missing, dict(compose(patch, later).cells)) == (B, {})


def test_a_patched_row_that_is_whole_has_no_incarnation_either():
    net = compose(event("c", 1, unavailable=B), event("u", 2, unavailable=frozenset("c")))
    assert (net.unavailable, net.cell("c"), net.barrier) == (frozenset(), 1, None)


def test_a_row_of_an_own_snapshot_is_forced_whatever_follows():
    assert compose(own(1), event("u", 2)).force
    assert compose(event("u", 5), own(1)).force
    assert compose(own(1), gone(2)).force
    assert not compose(event("u", 1), event("u", 2)).force


# -- key changes ----------------------------------------------------------------------------------
# The row's image in these tests is its pool row: `same` compares them.


def same(row, image):
    return row.row == image.row


def walk(row, *steps):
    """The last state, and what every `KeyLeft` took away."""
    state, taken = RowState(row), []
    for step in steps:
        state, left = apply_step(state, step, same=same)
        if isinstance(step, KeyLeft):
            taken.append(None if left is None else left.row)
    return state, taken


def test_a_delete_with_a_new_key_leaves_the_row_behind():
    state, taken = walk(event("u", 1), KeyLeft(gone(2), b"[3]"))
    assert state.row.action == net_change.DELETE
    assert taken == [1]


def test_what_was_never_seen_cannot_be_left_behind():
    assert walk(None, KeyLeft(gone(2), b"[3]"))[1] == [None]
    assert walk(gone(1), KeyLeft(gone(2), b"[3]"))[1] == [None]


def test_a_chain_through_a_key_in_one_transaction():
    """1 → 2 → 3: key 2 had no row before."""
    tx = at(5, 1), at(5, 2)
    state, taken = walk(
        None,
        KeyArrived(event("c", 5, position=tx[0]), b"[1]"),
        KeyLeft(gone(6, row=5, position=tx[1]), b"[3]"),
    )
    assert state.row.action == net_change.DELETE
    assert taken == [5]


def test_a_chain_without_before_images():
    """REPLICA IDENTITY DEFAULT: even over a stale row (its truncate is on its way) no shift."""
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        KeyLeft(gone(6, row=-7, position=at(5, 2)), b"[3]"),
    )
    assert state.row.action == net_change.DELETE
    assert taken == [5]


def test_a_shift_of_deferrable_keys():
    """id = id + 1: the delete after the create means the row that was there before."""
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        KeyLeft(gone(6, row=1, position=at(5, 2)), b"[3]"),
    )
    assert (state.row.row, state.row.action, state.displaced) == (5, net_change.UPSERT, None)
    assert taken == [1]


def test_a_shift_as_a_slots_first_transaction():
    """It has no last commit: major is the own LSN, and differs inside the transaction."""
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(8, 9)), b"[1]"),
        KeyLeft(gone(6, row=1, position=at(16, 17)), b"[3]"),
    )
    assert (state.row.row, taken) == (5, [1])


def test_the_created_row_may_be_the_one_that_moves_on():
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        KeyLeft(gone(6, row=5, position=at(5, 2)), b"[3]"),
    )
    assert (state.row.row, state.row.position, state.row.force) == (1, at(1), True)
    assert taken == [5]


@pytest.mark.parametrize("last", [lambda net: KeyLeft(net, b"[3]"), lambda net: net])
@pytest.mark.parametrize("which", [1, 5])
def test_a_key_change_that_comes_again_changes_nothing(which, last):
    """Neither the one that ends with a delete of the row."""
    steps = [
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        last(gone(6, row=which, position=at(5, 2))),
    ]
    once, _ = walk(event("c", 1), *steps)
    again, taken = walk(replace(once.row, force=False), steps[1])
    assert again.row.row == once.row.row
    assert again.row.action == net_change.UPSERT
    assert set(taken) <= {None}


def test_a_create_that_comes_again_does_not_forget_filled_columns():
    arrive = KeyArrived(event("c", 5, unavailable=B), b"[1]")
    filled = event("c", 5)
    assert walk(filled, arrive)[0].row is filled


def test_a_further_change_of_the_transaction_does_not_forget_the_displaced_row():
    """id = id + 1 and then another column, in one transaction; the delete comes last."""
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        event("u", 6, position=at(5, 2)),
        KeyLeft(gone(7, row=1, position=at(5, 3)), b"[3]"),
    )
    assert (state.row.row, state.row.action, taken) == (6, net_change.UPSERT, [1])


def test_a_later_transaction_has_nothing_to_do_with_the_displaced_row():
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        event("u", 7),
        KeyLeft(gone(8, row=7), b"[3]"),
    )
    assert state.row.action == net_change.DELETE
    assert taken == [7]


def test_a_later_delete_of_the_created_row_does_not_bring_the_displaced_one_back():
    """The delete of the displaced row was never seen."""
    state, taken = walk(
        event("c", 1),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        KeyLeft(gone(8, row=5), b"[3]"),
    )
    assert (state.row.action, taken) == (net_change.DELETE, [5])


def test_a_displaced_row_that_is_not_whole_keeps_the_mark_of_its_incarnation():
    state, _ = walk(
        event("c", 1, unavailable=B),
        KeyArrived(event("c", 5, position=at(5, 1)), b"[1]"),
        KeyLeft(gone(6, row=5, position=at(5, 2)), b"[3]"),
    )
    assert (state.row.row, state.row.unavailable, state.row.barrier) == (1, B, at(1))


def test_a_step_below_the_row_changes_nothing():
    newer = event("u", 9)
    for step in (event("u", 5), KeyLeft(gone(5), b"[3]"), KeyArrived(event("c", 5), b"[1]")):
        state, taken = walk(newer, step)
        assert state.row is newer
        assert taken in ([], [None])


def test_a_change_at_the_rows_own_position_is_taken_again():
    """Only what comes once is known by its position: an upsert twice is the upsert."""
    known = event("u", 5, unavailable=B)
    assert walk(known, event("u", 5, row=8))[0].row.row == 8


def test_a_delete_at_the_position_of_a_row_that_was_read_takes_it():
    """The key was read again while nothing was written, and the source has no such row."""
    known = replace(event("r", 5), barrier=at(3))
    assert walk(known, gone(5))[0].row.action == net_change.DELETE
    assert walk(known, gone(3))[0].row is known
    assert walk(event("u", 5), gone(5))[0].row == event("u", 5)


def test_a_change_in_the_transaction_of_a_mark_is_not_what_left_it():
    """The barrier stops the delete that it tells of, and no upsert."""
    marked = replace(event("u", 5), barrier=at(6))
    assert walk(marked, event("u", 6))[0].row.row == 6
    assert walk(marked, gone(6))[0].row is marked


def test_a_read_where_the_table_has_no_row_is_a_row():
    assert walk(None, read(3))[0].row == replace(read(3), action=net_change.UPSERT)
    assert walk(event("u", 1), read(3))[0].row == event("u", 1)


def test_a_row_of_an_own_snapshot_counts_whatever_the_position():
    assert walk(event("u", 9), own(3))[0].row == own(3)


def test_a_net_that_needs_a_base_is_whole_without_one():
    state, _ = walk(None, event("u", 1, unavailable=B))
    assert state.row == replace(event("u", 1, unavailable=B), base=False)


def test_cells_default_to_the_row():
    net = NetChange(net_change.UPSERT, "u", at(1), row=3, cells={"b": 9})
    assert (net.cell("a"), net.cell("b")) == (3, 9)
