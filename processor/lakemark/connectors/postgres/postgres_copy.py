"""PostgreSQL: the data of COPY … TO STDOUT, in one piece.

The server sends each row as a message of its own, so the loop over them is the price of a row. With
psycopg's own loop, which can wait in many ways, reading a chunk takes half as long again.
"""

from psycopg import pq
from psycopg.errors import error_from_result

from lakemark.connectors.postgres.postgres_session import Session
from lakemark.errors import DependencyError


def copied(session: Session, query: str, *, table: str, limit: int) -> tuple[bytearray, int]:
    """The data of a COPY, and the length of its longest row in bytes.

    Args:
        session: in a transaction.
        query: the whole COPY statement.
        table: its name, for the error.
        limit: bytes of all rows, unless there is only one.

    Afterwards the session can be used again; after an error its transaction cannot.

    Raises:
        DependencyError: ``chunk-too-large``: the COPY was cancelled.
        psycopg.Error: as the server says.
    """
    connection = session.pgconn
    begun = connection.exec_(query.encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise error_from_result(begun)
    data = bytearray()
    longest = 0
    read = connection.get_copy_data
    while True:
        size, row = read(0)
        if size < 0:
            break
        data += row
        if size > longest:  # noqa: PLR1730 - max() takes twice as long
            longest = size
        if len(data) > limit and len(data) > longest:
            session.cancel()
            while read(0)[0] > 0:
                pass
            _end(session)
            raise DependencyError(
                f"a chunk of {table} has more than {limit >> 20} MiB",
                code="chunk-too-large",
                hint="its halves are read instead; set snapshot.chunk_rows lower",
            )
    failed = _end(session)
    if failed is not None:
        raise error_from_result(failed)
    return data, longest


def _end(session: Session) -> pq.abc.PGresult | None:
    """Take the results of a COPY that has ended; return the first that is a failure, if any.

    After the server's reason the client may add one of its own: that the connection has ended.
    """
    failed = None
    while (result := session.pgconn.get_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            failed = failed or result
    return failed
