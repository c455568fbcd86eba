"""The instructions of a program: what is read one after the other, and which JSON is written of it.

They are data for one loop (`compiled.scan_datums`), so that no schema has to be compiled. What
nobody wants of a datum has instructions too, which read it and write nothing. Every record that is
wanted as a whole, or not at all, is a routine: a schema may have it in itself, and at many places.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from lakemark.converters.avro.program import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
    ENUM,
    FIXED,
    FLOAT,
    INT,
    LONG,
    MAP,
    NULL,
    RECORD,
    STRING,
    UNION,
    Node,
    Program,
)

OP, TEXT, SIZE, ARGUMENT, FIRST, COUNT, NEXT, KIND = range(8)
"""Columns of an instruction, which is a line of a processor's cache: what to do, begin and size of
the text that is written before, what it needs, its first link and their number, what comes next,
and of which kind it is."""

PAST_LONG, PAST_INT, PAST_SIZED, PAST_ENUM = range(4)
"""What is read and not written."""
UNION_OF, PUT_INT, PUT_LONG, PUT_STRING, PUT_BYTES, PUT_ENUM, PUT_UNLESS = range(4, 11)
"""The links of a union are the first instructions of its branches, those of an enum its symbols.
`PUT_UNLESS` is a string; where it has but the byte `KIND`, the datum begins anew at `ARGUMENT`."""
NUMBERED: Final = PUT_UNLESS
"""Up to here a whole number is read first: the value, a size or a place."""
PUT, PAST_BOOLEAN, PUT_BOOLEAN, PAST_FIXED, PUT_FIXED, PUT_FLOAT, PUT_DOUBLE = range(11, 18)
"""`PUT` has its text alone. `ARGUMENT`: bytes of what has always as many."""
CALL, RETURN, BEGIN, NEXT_ITEM, END = range(18, 23)
"""`ARGUMENT`: where a routine begins, or what comes after the last item."""
ENTRIES, WRITTEN = 1, 2
"""Bits of `KIND`: items have keys; they are written."""

_PAST: Final[Mapping[int, int]] = {
    BOOLEAN: PAST_BOOLEAN,
    INT: PAST_INT,
    LONG: PAST_LONG,
    FLOAT: PAST_FIXED,
    DOUBLE: PAST_FIXED,
    BYTES: PAST_SIZED,
    STRING: PAST_SIZED,
    FIXED: PAST_FIXED,
    ENUM: PAST_ENUM,
}
_PUT: Final[Mapping[int, int]] = {
    BOOLEAN: PUT_BOOLEAN,
    INT: PUT_INT,
    LONG: PUT_LONG,
    FLOAT: PUT_FLOAT,
    DOUBLE: PUT_DOUBLE,
    BYTES: PUT_BYTES,
    STRING: PUT_STRING,
    FIXED: PUT_FIXED,
    ENUM: PUT_ENUM,
}
_SIZES: Final[Mapping[int, int]] = {FLOAT: 4, DOUBLE: 8}


class Wish(Enum):
    """Part of a value that is wanted; `BRIEF` is null, or an object without members."""

    NOTHING = 0
    WHOLE = 1
    BRIEF = 2


class Unless(NamedTuple):
    """A text is wanted; where it is this letter, the datum is read anew by other instructions."""

    letter: str
    entry: int


Wanted = Wish | Unless | Mapping[str, Any]
"""Of a record, what is wanted of its fields may be said by their names: of others, nothing."""


class Instructions(NamedTuple):
    """Instructions for one schema.

    Attributes:
        code: a row for each.
        links: what branches begin with; begin and size of symbols.
        texts: all of them, one behind the other.
        entries: where to begin for each thing that may be wanted of a datum.
    """

    code: npt.NDArray[np.int64]
    links: npt.NDArray[np.int64]
    texts: npt.NDArray[np.uint8]
    entries: tuple[int, ...]


def instructions(program: Program, *wanted: Wanted) -> Instructions:
    """Return instructions that read datums of a program, and write of them what is wanted.

    Args:
        program: of their schema.
        wanted: of a datum; an `Unless` may name the entries of those before.
    """
    maker = _Maker(program.nodes)
    for one in wanted or (Wish.WHOLE,):
        maker.entries.append(maker.code(0, one, b"", maker.emit(END)))
    maker.join()
    return Instructions(
        _fixed(np.array(maker.rows, np.int64).reshape(-1, KIND + 1)),
        _fixed(np.array(maker.links, np.int64).reshape(-1, 2)),
        _fixed(np.frombuffer(bytes(maker.texts), np.uint8)),
        tuple(maker.entries),
    )


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


class _Maker:
    """Makes instructions from the last to the first: each knows what comes after it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.rows: list[list[int]] = []
        self.links: list[tuple[int, int]] = []
        self.texts = bytearray()
        self.entries: list[int] = []
        self._nodes = nodes
        self._calls: list[tuple[int, int, Wish]] = []

    def code(self, number: int, wanted: Wanted, text: bytes, then: int) -> int:
        """Add the instructions for a value.

        Args:
            number: of its node.
            wanted: of the value.
            text: to be written before it; none where nothing is wanted.
            then: what comes after it.

        Returns:
            The number of the first.
        """
        node = self._nodes[number]
        if node.kind == UNION:
            branches = [(self.code(part, wanted, b"", then), 0) for part in node.parts]
            return self.emit(UNION_OF, text, links=branches)
        if node.kind == NULL:
            return self._put(text + b"null", then) if wanted is not Wish.NOTHING else then
        if wanted is Wish.BRIEF:
            return self._put(text + b"{}", self.code(number, Wish.NOTHING, b"", then))
        if node.kind == RECORD:
            return self._record(number, wanted, text, then)
        if node.kind in {ARRAY, MAP}:
            return self._items(node, wanted, text, then)
        return self._scalar(node, wanted, text, then)

    def emit(
        self,
        op: int,
        text: bytes = b"",
        then: int = 0,
        *,
        argument: int = 0,
        links: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Add an instruction; return its number."""
        begin, size = self._kept(text)
        self.rows.append([op, begin, size, argument, len(self.links), len(links), then, 0])
        self.links += links
        return len(self.rows) - 1

    def join(self) -> None:
        """Add the routines that are called."""
        routines: dict[tuple[int, Wish], int] = {}
        for place, number, wish in self._calls:  # grows meanwhile
            if (number, wish) not in routines:
                then = self.emit(RETURN, b"" if wish is Wish.NOTHING else b"}")
                fields = dict.fromkeys(self._nodes[number].names, wish)
                routines[number, wish] = self._fields(self._nodes[number], fields, b"", then)
            self.rows[place][ARGUMENT] = routines[number, wish]

    def _record(self, number: int, wanted: Wanted, text: bytes, then: int) -> int:
        node = self._nodes[number]
        if isinstance(wanted, Mapping):
            some = any(wanted.get(name, Wish.NOTHING) is not Wish.NOTHING for name in node.names)
            then = self._put(b"}" if some else text + b"{}", then)
            return self._fields(node, wanted, text, then)
        if not node.parts:
            return then if wanted is Wish.NOTHING else self._put(text + b"{}", then)
        place = self.emit(CALL, text, then)
        wish = Wish.NOTHING if wanted is Wish.NOTHING else Wish.WHOLE
        self._calls.append((place, number, wish))
        return place

    def _fields(self, node: Node, wanted: Mapping[str, Wanted], text: bytes, then: int) -> int:
        """Add those of a record; the first that is wanted opens it."""
        wishes = [wanted.get(name, Wish.NOTHING) for name in node.names]
        some = [place for place, wish in enumerate(wishes) if wish is not Wish.NOTHING]
        for place in reversed(range(len(node.parts))):
            before = b""
            if place in some:
                before = text + b"{" if place == some[0] else b","
                before += msgspec.json.encode(node.names[place]) + b":"
            then = self.code(node.parts[place], wishes[place], before, then)
        return then

    def _items(self, node: Node, wanted: Wanted, text: bytes, then: int) -> int:
        quiet, kind = wanted is Wish.NOTHING, ENTRIES * (node.kind == MAP)
        opened, closed = (b"{", b"}") if kind else (b"[", b"]")
        if not quiet:
            then, kind, text = self._put(closed, then), kind | WRITTEN, text + opened
        place = self.emit(NEXT_ITEM, argument=then)
        self.rows[place][KIND] = kind
        self.rows[place][NEXT] = self.code(node.parts[0], wanted, b"", place)
        return self.emit(BEGIN, text, place)

    def _scalar(self, node: Node, wanted: Wanted, text: bytes, then: int) -> int:
        if isinstance(wanted, Unless) and node.kind == STRING:
            place = self.emit(PUT_UNLESS, text, then, argument=self.entries[wanted.entry])
            self.rows[place][KIND] = ord(wanted.letter)
            return place
        op = (_PAST if wanted is Wish.NOTHING else _PUT)[node.kind]
        symbols = [self._kept(msgspec.json.encode(name)) for name in node.names]
        size = _SIZES.get(node.kind, node.size)
        return self.emit(op, text, then, argument=size, links=symbols)

    def _put(self, text: bytes, then: int) -> int:
        return self.emit(PUT, text, then)

    def _kept(self, text: bytes) -> tuple[int, int]:
        begin = len(self.texts)
        self.texts += text
        return begin, len(text)
