"""Rows from the server's packets, however these arrive: whole, in pieces, longer than one."""

import io
import random
import struct

import numpy as np
import pyarrow as pa
import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors import registry
from lakemark.connectors.mysql import mysql_rows, scan_rows
from lakemark.connectors.mysql.mysql_rows import batches
from lakemark.converters import compiler
from lakemark.errors import DependencyError

LONGEST = 0xFFFFFF
END = b"\xfe\0\0\2\0"
SYNTAX = b"\xff" + struct.pack("<H", 1969) + b"#70100max_statement_time exceeded"
TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.integers(0, 70_000).map(lambda size: b"x" * size),
)


class Arriving(io.RawIOBase):
    """A socket that gives what it has in pieces of the given sizes, again and again.

    Where a real one would wait for ever it says so.
    """

    def __init__(self, data: bytes, sizes: list[int], *, ends: bool) -> None:
        self.data, self.sizes, self.ends, self.at, self.turn = data, sizes, ends, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, into) -> int:
        assert self.ends or self.at < len(self.data), "it would wait for ever"
        size = min(self.sizes[self.turn % len(self.sizes)], len(into), len(self.data) - self.at)
        self.turn += 1
        into[:size] = self.data[self.at : self.at + size]
        self.at += size
        return size


class Answer:
    def __init__(self, columns: int) -> None:
        self.columns = columns

    def is_ok_packet(self) -> bool:
        return not self.columns

    def is_load_local_packet(self) -> bool:
        return False

    def read_length_encoded_integer(self) -> int:
        return self.columns


class Raw:
    """A driver's connection to a server that answers every query with the same packets.

    One byte stands for each packet before the rows.
    """

    def __init__(self, columns: int, data: bytes, sizes: list[int], *, ends: bool) -> None:
        self.columns, self.left = columns, columns + 2
        self.socket = Arriving(b"-" * self.left + data, sizes, ends=ends)
        self._rfile = io.BufferedReader(self.socket)

    def _execute_command(self, command: int, query: str) -> None:
        assert query == "SELECT"

    def _read_packet(self):
        assert self.left
        self.left -= 1
        assert self._rfile.read(1) == b"-"
        return Answer(self.columns)


class Talk:
    def __init__(
        self, columns: int, data: bytes, sizes: list[int] | None = None, *, ends: bool = False
    ) -> None:
        self.raw, self.closed = Raw(columns, data, sizes or [1 << 30], ends=ends), False

    def close(self) -> None:
        self.closed = True


def length(size: int) -> bytes:
    if size < 0xFB:
        return bytes([size])
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def packets(payload: bytes) -> bytes:
    pieces = [payload[at : at + LONGEST] for at in range(0, len(payload) + 1, LONGEST)]
    return b"".join(len(p).to_bytes(3, "little") + b"\7" + p for p in pieces)


def row(texts) -> bytes:
    return b"".join(b"\xfb" if t is None else length(len(t)) + t for t in texts)


def sent(rows, end: bytes = END) -> bytes:
    return b"".join(packets(row(texts)) for texts in rows) + packets(end)


def read(talk: Talk, limit: int = 1 << 40):
    pieces = list(batches(talk, "SELECT", table="d.t", limit=limit))
    for piece in pieces:
        for column in piece:
            column.validate(full=True)
            assert column.type == pa.binary()
    return [
        texts for piece in pieces for texts in zip(*(c.to_pylist() for c in piece), strict=True)
    ]


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(st.tuples(*[TEXTS] * width), max_size=30).map(lambda r: (width, r))
    ),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=5),
)
def test_rows_are_what_was_sent_whatever_pieces_arrive(table, sizes):
    width, rows = table
    assert read(Talk(width, sent(rows), sizes)) == rows


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 1 << 30])
def test_many_rows_come_in_batches_of_a_bounded_size(piece):
    texts = [(b"%d" % n, b"y" * (n % 300), None if n % 3 else b"") for n in range(200_000)]
    talk = Talk(3, sent(texts), [piece])
    pieces = list(batches(talk, "SELECT", table="d.t", limit=1 << 40))
    assert len(pieces) > 3
    assert max(sum(c.nbytes for c in p) for p in pieces) < 4 * mysql_rows._PIECE
    columns = [pa.chunked_array(c).to_pylist() for c in zip(*pieces, strict=True)]
    assert [*zip(*columns, strict=True)] == texts


@pytest.mark.parametrize("size", [LONGEST - 8, LONGEST - 4, LONGEST, 2 * LONGEST - 8, 40 << 20])
def test_a_row_may_be_longer_than_a_packet(size):
    dice = random.Random(size)
    large = dice.randbytes(size)
    rows = [(b"1", b"a"), (b"2", large), (b"3", None), (large[:9], b"z")]
    assert read(Talk(2, sent(rows), [70_001])) == rows


def test_what_the_server_says_amid_rows_is_raised_and_the_session_goes_on():
    talk = Talk(1, sent([(b"1",)], SYNTAX))
    with pytest.raises(pymysql.MySQLError) as caught:
        read(talk)
    assert caught.value.args[0] == 1969
    assert not talk.closed


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_a_connection_that_ends_amid_rows_is_lost_and_closed(cut):
    talk = Talk(1, sent([(b"1",), (b"2",)])[:-cut], ends=True)
    with pytest.raises(pymysql.OperationalError) as caught:
        read(talk)
    assert caught.value.args[0] == 2013
    assert talk.closed


@pytest.mark.parametrize("width", [1, 3])
def test_a_row_of_another_width_is_no_row(width):
    talk = Talk(width, sent([(b"1", b"2")]))
    with pytest.raises(pymysql.InternalError):
        read(talk)
    assert talk.closed


def test_too_many_bytes_are_said_and_nothing_more_is_taken():
    rows = [(b"x" * 1000,)] * 10_000
    talk = Talk(1, sent(rows), [1 << 20])
    with pytest.raises(DependencyError) as caught:
        read(talk, limit=1 << 20)
    assert caught.value.code == "chunk-too-large"
    assert talk.closed
    assert talk.raw.socket.at < len(talk.raw.socket.data)


def test_one_row_may_be_as_large_as_it_is():
    rows = [(b"x" * (3 << 20),)]
    assert read(Talk(1, sent(rows)), limit=1 << 20) == rows


def test_a_statement_without_rows_is_a_mistake():
    with pytest.raises(pymysql.InterfaceError):
        read(Talk(0, b""))


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=20))
def test_what_is_not_compiled_does_the_same(rows):
    scan = mysql_rows._Scan(*(f.py_func for f in mysql_rows._Scan(*_functions())))
    data = np.frombuffer(sent(rows), np.uint8)
    for functions in (scan, mysql_rows._Scan(*_functions())):
        starts, ends = np.zeros(32, np.int64), np.zeros(32, np.int64)
        why, at, count = functions.walk(data, 0, len(data), starts, ends, 0)
        assert (why, count) == (scan_rows.CLOSED, len(rows))
        assert data[at:].tobytes() == packets(END)
        assert [data[a:b].tobytes() for a, b in zip(starts, ends, strict=True)][:count] == [
            *map(row, rows)
        ]


def _functions():
    return scan_rows.walk, scan_rows.measure, scan_rows.cut


def test_everything_compiled_is_brought_along_where_a_cache_is_made():
    assert compiler.ready(*registry.EXAMPLES)
    assert all(function.signatures for function in _functions())
