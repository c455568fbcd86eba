"""What commits say of their batches."""

from hypothesis import given
from hypothesis import strategies as st

from lakemark.model import commit_note
from lakemark.model.commit_note import CommitNote, note_of

OFFSETS = {"shop.t/0": (3, 9), "shop.t/1": (0, 1), "shop.u/0": (5, 6), "odd/2": (1, 2)}


def test_a_note_has_what_the_table_got() -> None:
    sources = ["shop.t/1", "shop.t/0", "shop.t/0", "chunk/7", "chunk/4", "sweep/run-1"]
    note = note_of(12, "stream", sources, OFFSETS)
    assert note == CommitNote(12, "stream", {"shop.t": {0: (3, 9), 1: (0, 1)}}, [4, 7], ["run-1"])
    assert commit_note.decode(commit_note.encode(note)) == note


def test_a_record_is_of_the_batch_that_read_it() -> None:
    note = note_of(12, "stream", ["shop.t/0"], OFFSETS)
    assert [at for at in range(12) if note.has("shop.t", 0, at)] == list(range(3, 9))
    assert not note.has("shop.t", 1, 0)
    assert not note.has("shop.u", 0, 5)


@given(st.one_of(st.none(), st.integers(), st.text(), st.just('{"by":"else","batch":1}')))
def test_what_others_say_is_no_note(text: object) -> None:
    assert commit_note.decode(text) is None
