"""The versions of the tables that hold exactly what was committed at one place of the source.

Batches note the cuts that they end at (`model.cuts`), and each commit of a table says which batch
made it (`model.commit_note`). So the version that a table had at a cut is the newest one of a batch
up to it. Nothing is changed, and no rows are read.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from lakemark.connectors.log_place import LogPlace
from lakemark.connectors.parts import parts_of
from lakemark.connectors.registry import database_kind
from lakemark.errors import LakemarkError, PipelineError, RefusedError, cut, nearest
from lakemark.model.cuts import SourceCut
from lakemark.ops.stored_state import Stored, newest_state
from lakemark.settings.config import Config
from lakemark.settings.table_id import unqualified
from lakemark.sink import formats, kept_cuts
from lakemark.sink.names import folder_of

LATEST: Final = "latest"
NO_CUT: Final = "no-cut"
_HINT: Final = (
    "set stream.cuts to transactions, and provide.transaction.metadata=true in the connector; "
    "`lakemark doctor` says what is missing"
)


class TableAtCut(msgspec.Struct, frozen=True):
    """One table at a cut.

    Attributes:
        table: its name.
        path: its folder in the lake.
        version: that holds exactly what was committed; None where there is none.
        reason: why not.
    """

    table: str
    path: str
    version: int | None
    reason: str = ""


class FoundCut(msgspec.Struct, frozen=True):
    """A cut of one connector.

    Attributes:
        connector: the qualifier of its tables; empty for the only one.
        transaction: the last one that the tables hold, as the connector names it.
        committed_at: when it was committed, by the source's clock.
        batch: that ended there.
        tables: each.
    """

    connector: str
    transaction: str
    committed_at: datetime
    batch: int
    tables: tuple[TableAtCut, ...]


def find(
    config: Config, *, at: str = LATEST, connector: str = "", tables: Sequence[str] = ()
) -> list[FoundCut]:
    """Return the newest cut at or before a place, of each connector.

    Args:
        config: ours.
        at: `LATEST`, a moment (ISO 8601, without a zone UTC), or a place of the log as its database
            prints it.
        connector: of several, whose; empty = all.
        tables: only these; none = all.

    Raises:
        PipelineError: `no-cut`: there is none, or none so early; `unknown-table`.
        RefusedError: `bad-value`: what is given is no place, or no connector's.
        DependencyError, TableError: checkpoint, lake or Connect cannot be read.
    """
    stored = newest_state(config)
    state = stored.state
    cuts = {} if state is None else _cuts(config, stored)
    if not cuts or state is None:
        raise PipelineError("no batch has ended at a cut yet", code=NO_CUT, hint=_HINT)
    names = [*state.tables]
    for table in tables:
        if table not in names:
            raise PipelineError(
                f"there is no table {cut(table)} in this pipeline",
                code="unknown-table",
                hint=nearest(table, names, "lakemark status lists its tables"),
            )
    found = []
    chosen = _qualifiers(config, [*cuts], connector)
    for qualifier in chosen:
        own = [t for t in tables or names if unqualified(qualifier, t) is not None]
        if not own:
            continue
        one = _newest(cuts[qualifier], _bound(config, at, qualifier), at)
        versions = tuple(at_cut(config, table, one) for table in own)
        moment = datetime.fromtimestamp(one.ended_ms / 1000, UTC)
        found.append(FoundCut(qualifier, one.transaction, moment, one.batch, versions))
    if not found:
        raise PipelineError("no cut has these tables", code=NO_CUT, hint=_HINT)
    return found


def _cuts(config: Config, stored: Stored) -> dict[str, list[SourceCut]]:
    """Return all cuts of the query, by connector, in their order."""
    assert stored.state is not None  # noqa: S101 - whoever asks has looked
    found = kept_cuts.kept(config.lake, stored.query)
    for name, log_state in [("", stored.state), *stored.state.logs.items()]:
        own = {one.batch: one for one in (*found.get(name, ()), *log_state.cutting.kept)}
        if own:
            found[name] = [own[batch] for batch in sorted(own)]
    return found


def _qualifiers(config: Config, known: Sequence[str], connector: str) -> list[str]:
    if not connector:
        return [*known]
    for part in parts_of(config):
        if connector == part.name:
            qualifier = part.read().qualifier
            if qualifier in known:
                return [qualifier]
    if connector in known:
        return [connector]
    raise RefusedError(
        f"no cut of a connector {cut(connector)} is known",
        code="bad-value",
        hint=nearest(connector, [part.name for part in parts_of(config)], "lakemark status"),
    )


def _bound(config: Config, at: str, qualifier: str) -> Callable[[SourceCut], bool]:
    """Return what says of a cut whether it is early enough."""
    if at == LATEST:
        return lambda _: True
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        place = _place(config, at, qualifier)
        return lambda one: place.has(one.transaction, bytes.fromhex(one.position))
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    most = moment.timestamp() * 1000
    return lambda one: one.ended_ms <= most


def _place(config: Config, text: str, qualifier: str) -> LogPlace:
    for part in parts_of(config):
        connector = part.read()
        if connector.qualifier == qualifier:
            return database_kind(connector.settings, part.config.database).log_place(text)
    raise RefusedError(
        f"{cut(text)} is a place in the log of a connector that is not configured",
        code="bad-value",
        hint="name the connector",
    )


def _newest(cuts: Sequence[SourceCut], early: Callable[[SourceCut], bool], at: str) -> SourceCut:
    found = next((one for one in reversed(cuts) if early(one)), None)
    if found is None:
        first = datetime.fromtimestamp(cuts[0].ended_ms / 1000, UTC)
        raise PipelineError(
            f"no cut is at or before {cut(at)}: the first one is at {cuts[0].transaction}, "
            f"committed {first:%Y-%m-%d %H:%M:%S} UTC",
            code=NO_CUT,
            hint="cuts begin where stream.cuts was set to transactions",
        )
    return found


def at_cut(config: Config, table: str, one: SourceCut) -> TableAtCut:
    """Return the version that a table had at a cut."""
    path = folder_of(config.lake, table)
    if table in one.without:
        reason = "it was behind, in doubt, or not proved to be whole then: see an earlier cut"
        return TableAtCut(table, path, None, reason)
    try:
        reader = formats.format_of(config.lake).reader_of(path, config.lake.options())
        history = reader.history()
    except LakemarkError as error:
        return TableAtCut(table, path, None, f"{error.message}. {error.hint}")
    noted = [commit for commit in history if commit.note is not None]
    version = next((c.version for c in noted if c.note and c.note.batch <= one.batch), None)
    if version is None:
        reason = "it has no rows from before" if noted else "no commit says which batch made it"
        return TableAtCut(table, path, None, reason)
    return TableAtCut(table, path, version)
