"""Finishing: what is left of a table when its chunks have been read.

    checking   every window of its chunks is closed: the schema is asked for once more, while the
               last chunks are settled; then the rows that are still incomplete
    sweeping   all rows were read: what lies below the first of them is gone from the source
    done       the sweep went through a batch, or there is none

The schema may be asked for before the chunks are settled: a change that comes after the last close
row does not meet them. So a sweep can follow the batch that settles the last chunk at once.
"""

from typing import TYPE_CHECKING

from lakemark.errors import LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_splitter import REPAIRS
from lakemark.snapshot.runs import Run, TableRun

if TYPE_CHECKING:
    from lakemark.snapshot.coordinator import Coordinator


class TableCompletion:
    """The ends of all tables.

    Attributes:
        unswept: tables whose sweep is to be said, again where it went through in vain.
    """

    def __init__(self, coordinator: "Coordinator") -> None:
        self.coordinator = coordinator
        self.outside = coordinator.outside
        self.book = coordinator.book
        self.reading = coordinator.reading
        self.unswept: list[tuple[Run, TableRun]] = []
        self._checked: set[tuple[str, str, int]] = set()

    def reset(self) -> None:
        """Forgets everything: what is kept is about to be loaded."""
        self.unswept, self._checked = [], set()

    def step(self) -> None:
        """Sweeps, checks and ends what can be."""
        unswept, self.unswept = self.unswept, []
        for run, table in unswept:
            if table.state == runs.SWEEPING and not self.coordinator.streams(table):
                self.unswept.append((run, table))
            elif table.state == runs.SWEEPING:
                self.book.sweep(run, table)
        for run in self.coordinator.active():
            for table in run.tables:
                if table.state == runs.READING and self.reading.is_read(run, table):
                    self._check(run, table)
                elif _mark(run, table) in self._checked:
                    self._go_on(run, table)
            if all(table.over for table in run.tables):
                self.book.end(run)

    def _check(self, run: Run, table: TableRun) -> None:
        if not self.reading.may_read(run, table, self.outside.monotonic()):
            return
        table.state = runs.CHECKING
        begun = table.begun
        self.coordinator.ask(
            lambda: self.outside.fingerprint(table.table),
            lambda found: self._seen(run, table, begun, found),
            run, table, begun,
        )  # fmt: skip

    def _seen(self, run: Run, table: TableRun, begun: int, fingerprint: str) -> None:
        if table.begun != begun or table.state != runs.CHECKING:
            return
        if table.fingerprint and fingerprint != table.fingerprint:
            self.reading.begin_again(run, table, "its schema was changed")
            return
        self._checked.add(_mark(run, table))
        self._go_on(run, table)

    def _go_on(self, run: Run, table: TableRun) -> None:
        """Once its chunks are settled; one that is void meanwhile is read, and all checked again.

        Of a table whose events had all their columns no row lacks any when all were read.
        """
        under_way = len(self.reading.of(run, table))
        if table.state == runs.CHECKING and table.settled + under_way < table.chunks:
            table.state = runs.READING
        elif table.state == runs.CHECKING and under_way:
            return
        self._checked.discard(_mark(run, table))
        if table.state != runs.CHECKING:
            return
        now, begun = self.coordinator.stream.tables.get(table.table), table.begun
        if not table.whole or (now is not None and not now.partial):
            self._settled(run, table, begun, ())
            return
        self.coordinator.ask(
            lambda: self.outside.partial_keys(table.table),
            lambda keys: self._settled(run, table, begun, keys),
            run, table, begun,
        )  # fmt: skip

    def _settled(self, run: Run, table: TableRun, begun: int, partial: tuple[str, ...]) -> None:
        if table.begun != begun or table.state != runs.CHECKING:
            return
        asked = self._asked(table)
        keys = sorted({*partial, *asked}) if table.whole else []
        try:
            texts = self.outside.texts(table.table, keys)
        except LakemarkError as error:
            self.coordinator.work_failed(run, table, begun, error)
            return
        if texts and table.repairs < REPAIRS:
            self._repair(run, table, list(texts.values()), sorted(asked & texts.keys()))
        elif table.whole and not asked and not self._unlisted(table):
            table.state = runs.SWEEPING
            self.book.sweep(run, table)
        else:
            self.book.finish(run, table, swept=False)

    def _asked(self, table: TableRun) -> set[str]:
        """Keys that the stream asked for after the table's rows, or they themselves, were read."""
        now = self.coordinator.stream.tables.get(table.table)
        reread = (now.reread if now else None) or {}
        read = dict.fromkeys(table.reread, max(table.armed, table.repaired))
        return {key for key, batch in reread.items() if batch > read.get(key, table.armed)}

    def _unlisted(self, table: TableRun) -> bool:
        """Whether more keys were asked for meanwhile than are listed: any row may be one."""
        now = self.coordinator.stream.tables.get(table.table)
        return now is not None and now.reread_missed > table.armed

    def _repair(self, run: Run, table: TableRun, texts: list[list[str]], asked: list[str]) -> None:
        """Rows that the chunks left incomplete are read by their keys, as further chunks."""
        table.state = runs.READING
        table.repairs += 1
        table.repaired = self.coordinator.stream.batch
        self.reading.since[run.id] = self.reading.windows.begun
        table.reread = sorted({*table.reread, *asked})
        self.reading.cutting.repair(run, table, texts)

    def swept(self, run_id: str, table_name: str, *, void: str) -> None:
        """A sweep went through a batch."""
        run = self.book.runs.get(run_id)
        table = next((t for t in run.tables if t.table == table_name), None) if run else None
        if run is None or table is None or table.state != runs.SWEEPING:
            return
        if void:
            self.unswept.append((run, table))
        else:
            self.book.finish(run, table, swept=True)


def _mark(run: Run, table: TableRun) -> tuple[str, str, int]:
    return run.id, table.table, table.begun
