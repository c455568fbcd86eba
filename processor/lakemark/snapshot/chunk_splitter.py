"""Tables cut into chunks, and chunks that were not begun cut again when their size changes.

A table is cut by the database when its turn comes. A list of keys is cut here.
"""

from typing import Final

import structlog

from lakemark.errors import LakemarkError
from lakemark.model.key_ranges import CUT_TIMEOUT, Condition, KeyRange
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, TOO_LARGE, ChunkError
from lakemark.snapshot.ports import Cut, SourceReader
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Chunk, Run, TableRun
from lakemark.snapshot.snapshot_state import SnapshotState

log = structlog.get_logger(__name__)

# After so many rounds incomplete rows stay so. Keys that were asked for meanwhile stay listed, and
# the table is not swept.
REPAIRS: Final = 5
KEY_BYTES: Final = 24_000  # of the keys of a chunk: times `runs.PAGE` less than brokers take


class ChunkSplitter:
    """Cuts the tables of all runs into chunks."""

    def __init__(
        self, state: SnapshotState, store: RunStore, retries: Retries, *, reader: SourceReader
    ) -> None:
        self.state = state
        self.reader = reader
        self.store = store
        self.retries = retries

    def condition(self, run: Run, table: TableRun) -> Condition | None:
        """Return the filter of a table; None if it has none.

        A filter that no longer fits fails the table, and None is returned.

        Raises:
            LakemarkError: retried: the database is away.
        """
        if not table.condition or table.keys is not None:  # keys that a scan has found by it
            return None
        try:
            return self.reader.condition(table.table, table.condition)
        except LakemarkError as error:
            if error.retried:
                raise
            self.store.fail_table(run, table, error.code, error.message, error.hint)
            return None

    def cut(self, run: Run, table: TableRun) -> None:
        """Cut a table that waits for it, or the rest of one whose chunks are to change in size.

        Raises:
            LakemarkError: retried: the database is away.
        """
        if not self.state.streams(table) or self.state.is_loading(table):
            return
        if table.state == runs.WAITING:
            self._first(run, table)
        elif table.state == runs.READING and run.chunk_rows not in {None, table.cut_rows}:
            self._again(run, table)

    def _rows(self, run: Run) -> int:
        return run.chunk_rows or self.state.settings.chunk_rows

    def _first(self, run: Run, table: TableRun) -> None:
        condition = self.condition(run, table)
        if table.over:
            return
        table.armed = self.state.windows.batch
        table.begun += 1 - table.begun % 2  # a cut that failed has begun nothing
        rows, begun = self._rows(run), table.begun

        def done(cut: Cut) -> None:
            if table.begun != begun or table.over or run.over:
                return
            table.fingerprint, table.total = cut.fingerprint, cut.rows
            self._take(run, table, [Chunk.of(span) for span in cut.spans], rows)

        if table.keys is not None:
            table.total = len(table.keys)
            self._take(run, table, _of_keys(table.keys, rows), rows)
            return
        table.state = runs.CUTTING
        self.retries.ask(
            lambda: self.reader.cut(
                table.table, rows, condition=condition, surrogate=run.surrogate,
                within=runs.EVERYTHING,
            ),
            done, run, table, begun,
        )  # fmt: skip

    def _again(self, run: Run, table: TableRun) -> None:
        """Cut the chunks at the table's end again that were not begun.

        They stay as they are if that takes too long: else the table would not be read any more.
        """
        chunks = self.state.chunks[run.id, table.table]
        first, end = _untouched(chunks)
        rows, begun = self._rows(run), table.begun
        if first == end:
            table.cut_rows = rows
            self.store.changed(run)
            return
        condition = self.condition(run, table)
        if table.over:
            return
        within = KeyRange(chunks[first].span.after, chunks[end - 1].span.upto)

        def again() -> Cut | None:
            try:
                return self.reader.cut(
                    table.table, rows, condition=condition, surrogate=run.surrogate, within=within
                )
            except LakemarkError as error:
                if error.code != CUT_TIMEOUT:
                    raise
                log.warning(
                    "snapshot.cut_kept", table=table.table, reason=error.message, hint=error.hint
                )
                return None

        def done(cut: Cut | None) -> None:
            if table.begun != begun or table.over or run.over:
                return
            if cut is None:
                table.state, table.cut_rows = runs.READING, rows
                self.store.changed(run)
                return
            found = [Chunk.of(span) for span in cut.spans]
            # Halves of chunks that were being read stand behind, and may be read themselves.
            for attempt in self.state.attempts_of(run, table):
                if attempt.chunk >= end:
                    attempt.chunk += len(found) - (end - first)
            self._take(run, table, [*chunks[:first], *found, *chunks[end:]], rows)

        table.state = runs.CUTTING
        self.retries.ask(again, done, run, table, begun)

    def _take(self, run: Run, table: TableRun, chunks: list[Chunk], rows: int) -> None:
        """Take the chunks of a new cut; the old cut's pages stay until the new ones are stored."""
        self.store.forget(run, table)
        self.state.chunks[run.id, table.table] = chunks
        table.cuts += 1
        table.state, table.chunks, table.cut_rows = runs.READING, len(chunks), rows
        self.store.chunks_changed(run, table, range(len(chunks)))

    def repair(self, run: Run, table: TableRun, keys: list[list[str]]) -> None:
        """Add chunks that read these keys again."""
        self._add(run, table, _of_keys(keys, self._rows(run)))

    def halve(self, run: Run, table: TableRun, at: int, error: ChunkError) -> bool:
        """Put two chunks in the place of one that took too long or is too large.

        Returns:
            whether that was possible.
        """
        chunk = self.state.chunks[run.id, table.table][at]
        halves = [Chunk.of(span) for span in error.halves]
        if chunk.keys is not None and error.code in {STATEMENT_TIMEOUT, TOO_LARGE}:
            middle = len(chunk.keys) // 2
            lists = [chunk.keys[:middle], chunk.keys[middle:]]
            halves = [Chunk(keys=keys) for keys in lists if middle]
        if not halves:
            return False
        self._over(run, table, at)
        self._add(run, table, halves)
        return True

    def leave(self, run: Run, table: TableRun, at: int) -> None:
        """Give up repairs of a table with keys that find no row: they all stay asked for."""
        table.repairs, table.reread = REPAIRS, []
        self._over(run, table, at)

    def _over(self, run: Run, table: TableRun, at: int) -> None:
        self.state.chunks[run.id, table.table][at].done = True
        table.settled += 1
        self.store.chunks_changed(run, table, [at])

    def _add(self, run: Run, table: TableRun, more: list[Chunk]) -> None:
        chunks = self.state.chunks[run.id, table.table]
        first = len(chunks)
        chunks += more
        table.chunks = len(chunks)
        self.store.chunks_changed(run, table, range(first, len(chunks)))


def _of_keys(keys: list[list[str]], rows: int) -> list[Chunk]:
    """Return chunks of keys, small enough for a page of them to go into one record."""
    chunks: list[Chunk] = []
    some: list[list[str]] = []
    left = 0
    for key in keys:
        size = sum(len(part.encode()) + 4 for part in key)
        if not some or len(some) == rows or size > left:
            some, left = [], KEY_BYTES
            chunks.append(Chunk(keys=some))
        some.append(key)
        left -= size
    return chunks


def _untouched(chunks: list[Chunk]) -> tuple[int, int]:
    """Return from and to before the last chunks that were not begun and follow each other."""
    end = len(chunks)
    while end and (chunks[end - 1].keys is not None or chunks[end - 1].upto is not None):
        end -= 1  # halves, and keys that are read again, stand behind the end of the table
    first = end
    while first:
        one = chunks[first - 1]
        follows = first == end or one.upto == chunks[first].after
        if one.done or one.attempt >= 0 or one.keys is not None or not follows:
            break
        first -= 1
    return first, end
