"""MySQL and MariaDB: the rows of a query as Arrow columns of bytes; a row is no Python object.

The server's packets are received in large pieces and cut by compiled functions (`scan_rows`).
PyMySQL sends the query and reads what stands before the rows; its own loop over them makes an
object of each value.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
from pymysql import err
from pymysql.constants import COMMAND, CR

from lakemark.connectors.mysql import scan_rows
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.converters import compiler
from lakemark.errors import DependencyError

_PIECE: Final = 4 << 20  # bytes of packets that are cut at a time
_LEAST_ROOM: Final = 256 << 10  # bytes that may be received at once, at least
_MOST_ROWS: Final = 1 << 17  # that are cut at a time


def batches(session: Session, query: str, *, table: str, limit: int) -> Iterator[list[pa.Array]]:
    """The rows of a query, in pieces: a column of bytes for each column of the query.

    Text is UTF-8, a blob or a bit string what it is; null is null.

    Args:
        session: where the query is sent; for nothing else until all rows were taken.
        query: a SELECT, its values in it.
        table: its name, for the error.
        limit: bytes of all texts, unless there is only one row.

    Raises:
        DependencyError: ``chunk-too-large``: the session was closed.
        pymysql.MySQLError: as the server says; the session can go on unless it is closed.
    """
    packets = _Packets(session, _begun(session, query))
    size = rows = 0
    while packets.receive():
        columns, more = packets.cut()
        size, rows = size + more, rows + packets.rows
        if size > limit and rows > 1:
            session.close()  # nothing else ends the server's sending at once
            raise DependencyError(
                f"a chunk of {table} has more than {limit >> 20} MiB",
                code="chunk-too-large",
                hint="its halves are read instead; set snapshot.chunk_rows lower",
            )
        yield columns


def _begun(session: Session, query: str) -> int:
    """Send a query; return how many columns its rows have, which come next."""
    raw: Any = session.raw
    raw._execute_command(COMMAND.COM_QUERY, query)  # noqa: SLF001
    first = raw._read_packet()  # noqa: SLF001
    if first.is_ok_packet() or first.is_load_local_packet():
        session.close()
        raise err.InterfaceError(CR.CR_NO_RESULT_SET, "the query has no rows")
    count = first.read_length_encoded_integer()
    for _ in range(count + 1):  # the columns, and what ends them
        raw._read_packet()  # noqa: SLF001
    return int(count)


class _Scan(NamedTuple):
    """The functions of `scan_rows`."""

    walk: Callable[..., tuple[int, int, int]]
    measure: Callable[..., int]
    cut: Callable[..., None]


@cache
def _scan() -> _Scan:
    """Return the functions, compiled; where that cannot be done they are slow, and right."""
    compiled = _Scan(scan_rows.walk, scan_rows.measure, scan_rows.cut)
    if compiler.ready(scan_rows.example):
        return compiled
    return _Scan(*(getattr(function, "py_func") for function in compiled))  # noqa: B009


class _Packets:
    """Packets of a result set that were received and are not cut yet.

    Attributes:
        rows: whole rows that were received last.
    """

    def __init__(self, session: Session, columns: int) -> None:
        self._session, self._columns = session, columns
        raw: Any = session.raw
        self._file = raw._rfile  # noqa: SLF001
        self._data = np.empty(2 * _PIECE, np.uint8)
        self._at = self._end = 0  # where the next packet begins; what was received ends
        self._begun = False
        self._starts, self._ends = (np.empty(_MOST_ROWS, np.int64) for _ in range(2))
        self._closed = False
        self._scan = _scan()
        self.rows = 0

    def receive(self) -> bool:
        """Receive rows, many at a time; return whether there were any more."""
        self._make_room()
        self.rows = 0
        while not self._closed:
            why, self._at, self.rows = self._scan.walk(
                self._data, self._at, self._end, self._starts, self._ends, self.rows
            )
            if why == scan_rows.CLOSED:
                self._close()
            elif why == scan_rows.SPLIT and not self.rows:
                self._join()
            if why in (scan_rows.FULL, scan_rows.SPLIT) or (self.rows and self._at >= _PIECE):
                break
            if not self._closed:
                if self.rows and self._end + _LEAST_ROOM > len(self._data):
                    break
                self._more()
        return self.rows > 0

    def cut(self) -> tuple[list[pa.Array], int]:
        """Return the columns of the rows received, and the bytes of all texts."""
        sizes = np.zeros(self._columns, np.int64)
        if self._scan.measure(self._data, self._starts, self._ends, self.rows, sizes) != self.rows:
            self._session.close()
            raise err.InternalError(CR.CR_MALFORMED_PACKET, "a row has other columns")
        begins = np.cumsum(sizes) - sizes
        texts = np.empty(int(sizes.sum()), np.uint8)
        offsets = np.empty((self._columns, self.rows + 1), np.int32)
        valid = np.empty((self._columns, self.rows), np.uint8)
        self._scan.cut(self._data, self._starts, self.rows, texts, begins, offsets, valid)
        columns = [
            _array(texts[begin : begin + size], offset, there)
            for begin, size, offset, there in zip(begins, sizes, offsets, valid, strict=True)
        ]
        return columns, len(texts)

    def _make_room(self) -> None:
        """Move what is not cut to the front."""
        left = self._end - self._at
        if self._at:
            self._data[:left] = self._data[self._at : self._end]
        self._at, self._end = 0, left

    def _more(self) -> None:
        """Receive once; the buffer grows for a packet that it cannot hold."""
        if self._end + _LEAST_ROOM > len(self._data):
            self._data = np.concatenate([self._data[: self._end], np.empty_like(self._data)])
        try:
            count = self._received(self._data[self._end :].data)
        except OSError as error:
            self._lost(error)
        if not count:
            self._lost(None)
        self._end += count

    def _received(self, room: memoryview) -> int:
        """Receive into memory, as much as there is; wait only if there is nothing.

        The driver's file may hold more than the driver has read of it. It gives that only together
        with more, for which it waits, though all may have come: so it is emptied first.
        """
        if self._begun:
            return int(self._file.readinto1(room))
        self._begun = True
        data = self._file.read1(len(self._file.peek()))
        room[: len(data)] = data
        return len(data)

    def _lost(self, error: OSError | None) -> NoReturn:
        self._session.close()
        raise err.OperationalError(
            CR.CR_SERVER_LOST, "Lost connection to MySQL server during query"
        ) from error

    def _close(self) -> None:
        """Take the packet that ends the rows: the end, or an error."""
        self._closed = True
        payload = self._data[self._at + scan_rows.HEADER : self._end].tobytes()
        if payload[0] == scan_rows.ERROR:
            err.raise_mysql_exception(payload)

    def _size(self, at: int) -> int:
        """Receive the packet at a place whole, and return its length."""
        while self._end < at + scan_rows.HEADER:
            self._more()
        size = int.from_bytes(self._data[at : at + 3].tobytes(), "little")
        while self._end < at + scan_rows.HEADER + size:
            self._more()
        return size

    def _join(self) -> None:
        """Receive a row of several packets and put their payloads together."""
        start = end = self._at + scan_rows.HEADER
        at = self._at
        while True:
            size = self._size(at)
            begin = at + scan_rows.HEADER
            self._data[end : end + size] = self._data[begin : begin + size]
            at, end = begin + size, end + size
            if size < scan_rows.LONGEST:
                break
        self._starts[0], self._ends[0] = start, end
        self._at, self.rows = at, 1


def _array(texts: Any, offsets: Any, valid: Any) -> pa.Array:
    nulls = len(valid) - int(np.count_nonzero(valid))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers, nulls)
