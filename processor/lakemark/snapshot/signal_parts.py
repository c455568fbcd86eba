"""The part of a signal that is one connector's, where a pipeline has several; pure.

Each of them reads all signals, and answers for itself, under the signal's id with its topic prefix
behind it: ``nightly@shop``. So is a run called.

signal                                   is for
---------------------------------------  -----------------------------------------------------------
a pattern of tables that begins with a   that connector
connector's topic prefix
any other pattern, or none at all        all of them: it may match tables of each
a filter whose pattern begins likewise   the connectors that a pattern of tables would be for
the id of a run                          the connector that the id ends with; all, if with none
what cannot be read                      nobody: one of them says so, under the signal's own id
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from lakemark.settings.table_id import qualified
from lakemark.snapshot.signals import ExecuteSnapshot, SetSnapshot, Signal, StopSnapshot

AT: Final = "@"
"""Between the id of a signal and the connector: no topic prefix has it."""
_ESCAPED: Final = re.compile(r"\\([^A-Za-z0-9])")
"""A character that stands for itself in a pattern, see `names.quoted`."""
_INNER: Final = re.compile(r"\\.|\[[^\]]*\]|\([^()]*\)", re.DOTALL)
"""The parts of a pattern in which a bar does not part it in two, but for nested parentheses."""


def own_id(name: str, connector: str) -> str:
    """Return the id of a signal's part, or of a run; the signal's own where there is one connector.

    Args:
        name: the signal's id.
        connector: its qualifier; empty for the only one.
    """
    return f"{name}{AT}{connector}" if connector else name


def own_runs(runs: Iterable[str], connector: str) -> frozenset[str]:
    """Return those of the runs that are a connector's, by their ids; all for the only one."""
    end = own_id("", connector)
    return frozenset(run for run in runs if run.endswith(end))


def part_of(signal: Signal, connector: str, every: Sequence[str]) -> Signal | None:
    """Return the part of a signal that one connector carries out; None if it has none.

    Args:
        signal: as it was read.
        connector: the one's qualifier; empty for the only one, which carries out all.
        every: the qualifiers of all of the pipeline, this one among them: the part of one that is
            away waits for it, and is nobody else's.
    """
    if not connector:
        return signal
    name = own_id(signal.id, connector)
    if isinstance(signal, SetSnapshot):
        run = _run_of(signal.run, connector, every)
        return None if run is None else replace(signal, id=name, run=run)
    if isinstance(signal, ExecuteSnapshot | StopSnapshot):
        return _of_tables(replace(signal, id=name), connector, every)
    return replace(signal, id=name)


def _of_tables(
    signal: ExecuteSnapshot | StopSnapshot, connector: str, every: Sequence[str]
) -> ExecuteSnapshot | StopSnapshot | None:
    """Return a signal with the patterns that may match a connector's tables; None without any."""

    def may_match(pattern: str) -> bool:
        return _owner(pattern, every) in {"", connector}

    own = tuple(filter(may_match, signal.data_collections))
    if signal.data_collections and not own:
        return None
    if isinstance(signal, StopSnapshot):
        return replace(signal, data_collections=own)
    filters = tuple(one for one in signal.conditions if may_match(one.data_collection))
    return replace(signal, data_collections=own, conditions=filters)


def parts_of(signal: Signal, every: Iterable[str]) -> list[str]:
    """Return the ids under which the connectors answer a signal.

    Args:
        signal: as it was read.
        every: the qualifiers of all connectors; only an empty one for a pipeline of one.
    """
    known = sorted(every)
    found = (part_of(signal, connector, known) for connector in known)
    return [part.id for part in found if part is not None]


def _run_of(run: str, connector: str, every: Sequence[str]) -> str | None:
    _, at, named = run.rpartition(AT)
    if at and named in every:
        return run if named == connector else None
    return own_id(run, connector)


def _owner(pattern: str, every: Sequence[str]) -> str:
    """Return the connector whose topic prefix a pattern begins with; empty if it is any's.

    One of alternatives is any's, unless they stand in parentheses behind the prefix.
    """
    outside = _INNER.sub("", pattern)
    if "|" in outside:
        return ""
    plain = _ESCAPED.sub(r"\1", pattern)
    starts = ((one, start) for one in every for start in (f"{one}.", qualified(one, "")))
    found = [one for one, start in starts if plain.startswith(start)]
    return max(found, key=len, default="")
