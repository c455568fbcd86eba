"""The last steps of a table, when its chunks have been read.

    checking   every window of its chunks is closed: the schema is asked for once more, while the
               last chunks are settled; then the rows that are still incomplete
    sweeping   all rows were read: what lies below the first of them is gone from the source
    done       the sweep went through a batch, or there is none

The schema may be asked for before the chunks are settled: a change that comes after the last close
row does not meet them. So a sweep can follow the batch that settles the last chunk at once.
"""

from collections.abc import Mapping

from lakemark.errors import LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_splitter import REPAIRS, ChunkSplitter
from lakemark.snapshot.ports import Executor, SourceReader
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.snapshot_state import SnapshotState


class TableCompletion:
    """Takes the last steps of all tables.

    Attributes:
        unswept: tables whose sweep is to be said, again where it went through in vain.
    """

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        retries: Retries,
        splitter: ChunkSplitter,
        *,
        reader: SourceReader,
        executor: Executor,
    ) -> None:
        self.state = state
        self.reader = reader
        self.executor = executor
        self.store = store
        self.retries = retries
        self.splitter = splitter
        self.unswept: list[tuple[Run, TableRun]] = []
        self._checked: set[tuple[str, str, int]] = set()

    def reset(self) -> None:
        """Forget everything: the stored state is about to be loaded."""
        self.unswept, self._checked = [], set()

    def step(self) -> None:
        """Sweep, check and end the tables that are ready for it."""
        unswept, self.unswept = self.unswept, []
        for run, table in unswept:
            if table.state == runs.SWEEPING and not self.state.streams(table):
                self.unswept.append((run, table))
            elif table.state == runs.SWEEPING:
                self.store.sweep(run, table)
        for run in self.state.active():
            for table in run.tables:
                if table.state == runs.READING and self.state.is_read(run, table):
                    self._check(run, table)
                elif _mark(run, table) in self._checked:
                    self._go_on(run, table)
            if all(table.over for table in run.tables):
                self.store.end(run)

    def _check(self, run: Run, table: TableRun) -> None:
        if not self.state.may_read(run, table, self.executor.monotonic()):
            return
        table.state = runs.CHECKING
        begun = table.begun
        self.retries.ask(
            lambda: self.reader.fingerprint(table.table),
            lambda found: self._seen(run, table, begun, found),
            run, table, begun,
        )  # fmt: skip

    def _seen(self, run: Run, table: TableRun, begun: int, fingerprint: str) -> None:
        if table.begun != begun or table.state != runs.CHECKING:
            return
        if table.fingerprint and fingerprint != table.fingerprint:
            self.store.begin_again(run, table, "its schema was changed")
            return
        self._checked.add(_mark(run, table))
        self._go_on(run, table)

    def _go_on(self, run: Run, table: TableRun) -> None:
        """Ask for the incomplete rows once all chunks are settled.

        A chunk that is void meanwhile is read again, and then everything is checked again. A table
        whose events always had all columns has no incomplete rows when all rows were read.
        """
        under_way = len(self.state.attempts_of(run, table))
        if table.state == runs.CHECKING and table.settled + under_way < table.chunks:
            table.state = runs.READING
        elif table.state == runs.CHECKING and under_way:
            return
        self._checked.discard(_mark(run, table))
        if table.state != runs.CHECKING:
            return
        now, begun = self.state.stream.tables.get(table.table), table.begun
        if run.verify:
            self.retries.ask(
                lambda: self.reader.found(run.id, table.table),
                lambda found: self._counted(run, table, begun, found),
                run, table, begun,
            )  # fmt: skip
            return
        if not table.whole or (now is not None and not now.partial):
            self._settled(run, table, begun, ())
            return
        self.retries.ask(
            lambda: self.reader.partial_keys(table.table),
            lambda keys: self._settled(run, table, begun, keys),
            run, table, begun,
        )  # fmt: skip

    def _counted(self, run: Run, table: TableRun, begun: int, found: Mapping[str, int]) -> None:
        """End a table of a verify run with what was kept of it, by whichever process."""
        if table.begun != begun or table.state != runs.CHECKING:
            return
        for kind, number in found.items():
            setattr(table.tally, kind, number)
        self.store.finish(run, table, swept=False)

    def _settled(self, run: Run, table: TableRun, begun: int, partial: tuple[str, ...]) -> None:
        if table.begun != begun or table.state != runs.CHECKING:
            return
        asked = self._asked(table)
        keys = sorted({*partial, *asked}) if table.whole else []
        try:
            texts = self.reader.texts(table.table, keys)
        except LakemarkError as error:
            self.retries.work_failed(run, table, begun, error)
            return
        if texts and table.repairs < REPAIRS:
            self._repair(run, table, list(texts.values()), sorted(asked & texts.keys()))
        elif table.whole and not asked and not self._unlisted(table):
            table.state = runs.SWEEPING
            self.store.sweep(run, table)
        else:
            self.store.finish(run, table, swept=False)

    def _asked(self, table: TableRun) -> set[str]:
        """Return keys that the stream asked for after the rows, or these keys, were read."""
        now = self.state.stream.tables.get(table.table)
        reread = (now.reread if now else None) or {}
        read = dict.fromkeys(table.reread, max(table.armed, table.repaired))
        return {key for key, batch in reread.items() if batch > read.get(key, table.armed)}

    def _unlisted(self, table: TableRun) -> bool:
        """Say whether more keys were asked for meanwhile than are listed: any row may be one."""
        now = self.state.stream.tables.get(table.table)
        return now is not None and now.reread_missed > table.armed

    def _repair(self, run: Run, table: TableRun, texts: list[list[str]], asked: list[str]) -> None:
        """Have rows that the chunks left incomplete read by their keys, as further chunks."""
        table.state = runs.READING
        table.repairs += 1
        table.repaired = self.state.stream.batch
        self.state.since[run.id] = self.state.windows.begun
        table.reread = sorted({*table.reread, *asked})
        self.splitter.repair(run, table, texts)

    def swept(self, run_id: str, table_name: str, *, void: str) -> None:
        """Note that a sweep went through a batch; `void` is the reason if it had no effect."""
        run = self.state.runs.get(run_id)
        table = next((t for t in run.tables if t.table == table_name), None) if run else None
        if run is None or table is None or table.state != runs.SWEEPING:
            return
        if void:
            self.unswept.append((run, table))
        else:
            self.store.finish(run, table, swept=True)


def _mark(run: Run, table: TableRun) -> tuple[str, str, int]:
    return run.id, table.table, table.begun
