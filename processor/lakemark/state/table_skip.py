"""The command ``lakemark table skip``: the records that it leaves out, and the control record.

Pure: the table's progress record and the ends of its topics are arguments. The pipeline carries
the record out (`tables.skip`): from the ends on the table streams again, and because what was left
out may be missing, it is to be snapshotted again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakemark.errors import PipelineError, nearest
from lakemark.state import stored_form
from lakemark.state.data_loss import CONTROL_LOST
from lakemark.state.tables import (
    CATCHING_UP,
    ERRORED,
    PAUSED,
    STREAMING,
    TableState,
    new_epoch_command,
)

STANDING: Final = (PAUSED, ERRORED)
"""States in which a table waits, with changes that it has not applied."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records of one partition that are left out; the topic's, whichever table they are of.

    Attributes:
        topic, partition: of the change topic.
        first: offset of the first; negative = the first that Kafka has.
        end: the offset after the last, which is the end of the log as of now.
    """

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        """One line for the user."""
        place = f"{self.topic}-{self.partition}"
        if self.first >= self.end:
            return f"{place}: nothing, it has been read to offset {self.end}"
        if self.first < 0:
            return f"{place}: its first record to offset {self.end - 1}"
        count = self.end - self.first
        return f"{place}: offsets {self.first} to {self.end - 1} ({count:,} records)"


def require_known(tables: Iterable[str], known: Iterable[str]) -> None:
    """Refuse tables that the pipeline has not seen, and name those that are most like them.

    Raises:
        PipelineError: `unknown-table`.
    """
    seen = sorted(known)
    missing = [table for table in tables if table not in seen]
    if not missing:
        return
    hints = {table: nearest(table, seen, "") for table in missing}
    near = " ".join(f"{table}: {hint}" for table, hint in hints.items() if hint)
    raise PipelineError(
        f"the pipeline has not seen {', '.join(missing)}",
        code="unknown-table",
        hint=near or "`lakemark status` shows the tables",
    )


def stopped_for_commands(record: bytes) -> bool:
    """Return whether the pipeline's own progress record says that commands for it are gone."""
    try:
        said = msgspec.json.decode(record)
    except msgspec.MsgspecError:
        return False
    return isinstance(said, dict) and said.get("code") == CONTROL_LOST


def already(table: str, record: bytes, wanted: str) -> str:
    """Say that a table is as a command wants it, or on its way; empty if it is not.

    Args:
        table: its name.
        record: its record on the progress topic.
        wanted: ``paused`` or ``streaming``.
    """
    try:
        state = stored_form.of_flat(record)
    except msgspec.MsgspecError:
        return ""
    there = {PAUSED: {PAUSED}, STREAMING: {STREAMING, CATCHING_UP}}[wanted]
    if state.state not in there or state.code == "skipping":
        return ""
    return (
        f"{table} is {state.state} already: there is nothing to do. What was asked of it just now, "
        "and is not carried out yet, is taken back."
    )


def standing(table: str, record: bytes) -> TableState:
    """Return the state of a table that can be skipped, from its record on the progress topic.

    Raises:
        PipelineError: it does not stand still, or a skip would not help.
    """
    state = rebuildable(table, record)
    if state.state not in STANDING:
        raise PipelineError(
            f"{table} is {state.state}: only a table that is paused or errored can be skipped",
            code="not-standing",
            hint=f"if it is to leave changes out all the same: lakemark table pause {table}",
        )
    return state


def rebuildable(table: str, record: bytes) -> TableState:
    """Return the state of a table that can be made anew, from its record on the progress topic.

    Raises:
        PipelineError: its source went back in time: that would not help.
    """
    try:
        state = stored_form.of_flat(record)
    except msgspec.MsgspecError:
        raise PipelineError(
            f"the progress record of {table} cannot be read",
            code="progress-unreadable",
            hint="use the version of lakemark that runs the pipeline",
        ) from None
    if state.code == "position-regressed":
        raise PipelineError(
            f"{table} stands still because its source went back in time: a skip does not help",
            code="position-regressed",
            hint=state.hint or new_epoch_command(""),
        )
    return state


def require_rebuilding(table: str, record: bytes) -> None:
    """Refuse to cancel a rebuild that there is not.

    Raises:
        PipelineError: `not-rebuilding`.
    """
    if not rebuildable(table, record).files.rebuild:
        raise PipelineError(
            f"{table} is not being rebuilt: there is nothing to cancel",
            code="not-rebuilding",
            hint="`lakemark status` shows the tables",
        )


def skipped(state: TableState, ends: Mapping[tuple[str, int], int]) -> list[Skipped]:
    """Return the records that a skip to these ends leaves out, by topic and partition."""
    found = []
    for (topic, partition), end in sorted(ends.items()):
        first = state.progress.from_offsets.get(topic, {}).get(partition, -1 if end else 0)
        found.append(Skipped(topic, partition, first, end))
    return found


def offsets(places: list[Skipped]) -> dict[str, dict[str, int]]:
    """Return the ends as the control record has them."""
    found: dict[str, dict[str, int]] = {}
    for place in places:
        found.setdefault(place.topic, {})[str(place.partition)] = place.end
    return found
