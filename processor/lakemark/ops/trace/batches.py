"""The batch that has read a record, and the commit of the table that has it. Pure.

Two things tell: the notes that commits have (`model.commit_note`), for as long as the table's log
goes back, and the states of the newest batches in the checkpoint. What neither of them tells is not
known: it is never guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lakemark.model.commit_note import TRUNCATES
from lakemark.model.decoding import AppliedPosition
from lakemark.ops.trace.traced import MadeBy
from lakemark.sink.lake_plan import STREAM
from lakemark.sink.table_format import TableCommit
from lakemark.state.tables import PipelineState, TableState


@dataclass(frozen=True, slots=True)
class TableBatches:
    """The batches and commits of a table, as far as they are known.

    Attributes:
        history: the table's commits.
        states: of consecutive batches, the oldest first; none where there is no checkpoint to read.
        entry: the table's newest state; None where nobody knows it.
    """

    history: Sequence[TableCommit]
    states: Sequence[PipelineState]
    entry: TableState | None

    def of_record(
        self, topic: str, partition: int, offset: int, *, truncates: bool = False
    ) -> MadeBy | None:
        """Return the batch that has read a record, with its commit if the table has one of it.

        Args:
            topic: of the record.
            partition: of the same.
            offset: of the same.
            truncates: whether it truncates the table: that is a commit of its own.
        """
        for commit in reversed(self.history):  # a batch that was repeated has committed once
            note = commit.note
            if note is None or note.truncates != truncates:
                continue
            if note.has(topic, partition, offset):
                return _made(commit)
        for before, after in zip(self.states, self.states[1:], strict=False):
            begin, end = (one.offsets.get(topic, {}).get(partition, 0) for one in (before, after))
            if begin <= offset < end:
                return MadeBy(after.batch, STREAM)
        return None

    def of_chunk(self, attempt: int) -> MadeBy | None:
        """Return the commit that has rows of an attempt at a chunk."""
        found = (c for c in reversed(self.history) if c.note and attempt in c.note.chunks)
        return next(map(_made, found), None)

    def of_sweep(self, run: str) -> MadeBy | None:
        """Return the commit that has removed what a run has not found."""
        sweeps = (c for c in reversed(self.history) if c.note and c.note.truncates)
        found = (c for c in sweeps if c.note and run in c.note.sweeps)
        return next(map(_made, found), None)

    def waits(self, topic: str, partition: int, offset: int) -> bool:
        """Say whether the pipeline, or the table, has certainly not come to a record."""
        if self.entry is not None:
            own = self.entry.progress.from_offsets.get(topic, {}).get(partition)
            if own is not None:
                return offset >= own
        if not self.states:
            return False
        return offset >= self.states[-1].offsets.get(topic, {}).get(partition, 0)

    def lacks(self, topic: str, partition: int, offset: int, made: MadeBy | None) -> bool:
        """Say whether it is certain that no commit of the table has a record.

        Args:
            topic: of the record.
            partition: of the same.
            offset: of the same.
            made: what `of_record` says of it.
        """
        if made is not None:
            noted = (commit.note.batch for commit in self.history if commit.note)
            return made.version is None and any(batch < made.batch for batch in noted)
        spans = [
            commit.note.offsets[topic][partition]
            for commit in self.history
            if commit.note is not None and partition in commit.note.offsets.get(topic, {})
        ]
        before, after = any(e <= offset for _, e in spans), any(s > offset for s, _ in spans)
        return after and (before or self._knows_all())

    def _knows_all(self) -> bool:
        """Say whether the table's log goes back to its beginning, and tells of all batches."""
        if not self.history or self.history[-1].version != 0:
            return False
        noted = [commit.version for commit in self.history if commit.note is not None]
        rows = {"MERGE", "WRITE", "DELETE", "UPDATE"}
        return not any(c.operation in rows and c.version < min(noted, default=0)
                       for c in self.history if c.note is None)  # fmt: skip

    def place(self, made: MadeBy | None) -> tuple[int, int]:
        """Return the place of a batch among the table's commits; what is not known comes first."""
        if made is None:
            return -1, 0
        if made.version is not None:
            return made.version, 0
        before = (c.version for c in self.history if c.note and c.note.batch < made.batch)
        return max(before, default=-1), 1

    def known(self, topic: str, partition: int) -> dict[int, AppliedPosition]:
        """Return where a partition was as each batch ended whose state is kept, by offset."""
        found = {}
        for state in self.states:
            reached = state.applied.get(topic, {}).get(partition)
            end = state.offsets.get(topic, {}).get(partition)
            if reached is not None and end is not None:
                found[end] = reached.reached()
        return found

    def edges(self, topic: str, partition: int) -> list[int]:
        """Return the offsets at which batches end in a partition, as far as they are known."""
        found = {state.offsets.get(topic, {}).get(partition, 0) for state in self.states}
        for commit in self.history:
            if commit.note is not None:
                found.update(commit.note.offsets.get(topic, {}).get(partition, ()))
        return sorted(offset for offset in found if offset > 0)


def _made(commit: TableCommit) -> MadeBy:
    batch, step = (commit.note.batch, commit.note.step) if commit.note else (-1, "")
    return MadeBy(batch, step.removesuffix(TRUNCATES), commit.version, commit.ts_ms)
