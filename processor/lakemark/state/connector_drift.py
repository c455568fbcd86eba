"""The connector's configuration and the columns' types while lakemark runs, and between its runs.

what changes                        what happens
----------------------------------  ----------------------------------------------------------------
lists of tables, the signal table,  the query is started again with what there is now; no event is
anything else                       left out meanwhile: the stream goes by `source.tables` alone
how values are written              so it is, and the tables concerned are snapshotted again, see
                                    `encoding`
the type of a column, so that its   the same
values are written in another way;
a column that was gone is there
the prefix, the kind of connector,  the pipeline stops (`connector-changed`): it is another source
the order of its records
what cannot work                    the pipeline stops (`configuration`)
Connect is away, or does not know   nothing: what was known last holds
the connector any more
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from lakemark.connectors import connector as connectors
from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.connector import Connector
from lakemark.errors import LakemarkError, PipelineError
from lakemark.model import positions
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import Config
from lakemark.settings.table_id import unqualified
from lakemark.state import control, encoding
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.encoding import Forms
from lakemark.state.tables import PipelineState

log = structlog.get_logger(__name__)

EVERY_S: Final = 30.0
ASKED_S: Final = 5.0
REASON: Final = "the connector writes values in another way: rows may have been read in the old one"
RETYPED: Final = (
    "a column was made anew or its type was changed, and values are written in another way: rows "
    "may have been read in the old one, or without it"
)


_ANOTHER_ORDER: Final = (
    "set it back; or begin a new pipeline, with another name, checkpoint and lake.path: positions"
    " of the one order say nothing about those of the other"
)


class ChangedError(Exception):
    """The connector is not as it was when the query was started."""


class Watch:
    """Looks at connector and catalog every now and then, in a thread of its own: answers take long.

    They are looked at every 30 s, or every `source.watch_interval` where that is shorter.

    Attributes:
        changed: names of settings that differ from those of the start, or tables of which a column
            is written in another way; empty as long as there is none.
    """

    def __init__(
        self,
        config: Config,
        connector: Connector,
        forms: Forms,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._config, self._connector = config, connector
        self._every_s = min(every_s, config.source.watch_interval.total_seconds())
        self._forms = forms
        self._over = threading.Event()
        self.changed: tuple[str, ...] = ()
        self._asked = -math.inf

    def is_same(self) -> bool:
        """Ask now whether the connector is as it was at the start; an answer holds for 5 s.

        Returns:
            False if it is not, or if it cannot be asked.
        """
        if time.monotonic() - self._asked < ASKED_S or self.changed:
            return not self.changed
        try:
            self._compare(connectors.read(self._config, attempts=1))
        except LakemarkError as error:
            log.debug("connector.unknown", code=error.code, reason=error.message)
            return False
        self._asked = time.monotonic()
        return not self.changed

    def _compare(self, now: Connector) -> None:
        self.changed = tuple(encoding.changed(self._connector.settings, now.settings))

    def require_same(self) -> None:
        """Raise `ChangedError` once the connector was seen to differ."""
        if self.changed:
            log.warning("connector.changed", settings=list(self.changed))
            raise ChangedError

    @contextmanager
    def running(self) -> Iterator["Watch"]:
        """Look while the block runs."""
        threading.Thread(target=self._run, name="connector", daemon=True).start()
        try:
            yield self
        finally:
            self._over.set()

    def _run(self) -> None:
        while not self.changed and not self._over.wait(self._every_s):
            try:
                self.look()
            except Exception:
                log.exception("connector.internal_error", retried=True)

    def look(self) -> None:
        """Look once. A connector that cannot be asked is taken for unchanged."""
        try:
            now = connectors.read(self._config)
        except LakemarkError as error:
            log.debug("connector.unknown", code=error.code, reason=error.message)
            return
        self._compare(now)
        if not self.changed and self._config.database is not None:
            self._look_at_columns()

    def _look_at_columns(self) -> None:
        """Look how the captured columns are written now: no event says it."""
        connector, captured = self._connector, self._connector.tables
        modes = HandlingModes.from_connector(connector.settings)
        names = [table for table in self._forms.tables if table in captured]
        try:
            now = catalog_of(self._config, modes, connector).read(names) if names else {}
            if not self._over.is_set():  # else it is for the next one to note
                self._forms.seen(now)
        except LakemarkError as error:
            log.debug("catalog.unknown", code=error.code, reason=error.message)
        self.changed = tuple(table for table in self._forms.differ if table in captured)


def agree(config: Config, checkpoint: Checkpoint, connector: Connector) -> None:
    """Make the checkpoint agree with a connector's settings before the query starts.

    Order: the tables concerned are marked by control records, then the settings are remembered; so
    a crash between the two marks them once more.

    Args:
        config: the configuration, with this connector alone.
        checkpoint: of the pipeline.
        connector: as it is now.

    Raises:
        PipelineError: `connector-changed`: it is the connector of another source.
        DependencyError: the database or the brokers are away.
    """
    before, now = checkpoint.decoding(connector.qualifier), _encoding_of(connector)
    require_source(checkpoint, connector)
    if before is not None and before != now:
        old, new = HandlingModes.from_connector(before), HandlingModes.from_connector(now)
        every = sorted(_known(checkpoint.newest()))
        known = [name for name in every if unqualified(connector.qualifier, name) is not None]
        found = encoding.concerned(
            known,
            (old, new),
            catalog_of(config, old, connector).read(known),
            catalog_of(config, new, connector).read(known),
        )
        control.resnapshot(config, found, REASON)
        settings = encoding.changed(before, now)
        log.warning("connector.writes_otherwise", settings=settings, tables=found)
    if before != now:
        checkpoint.note_decoding(now, connector.qualifier)


def agree_on_columns(
    config: Config, checkpoint: Checkpoint, schemas: Mapping[str, TableSchema]
) -> Forms:
    """Compare how columns are written; those that the catalogs lack stay as they were.

    Args:
        config: the configuration.
        checkpoint: of the pipeline.
        schemas: as the catalogs have them now.

    Returns:
        how columns are written, for as long as the query runs.

    Raises:
        DependencyError: the brokers are away.
    """
    state, before, now = checkpoint.newest(), checkpoint.written(), encoding.written(schemas)
    gone = {t: dict.fromkeys(names, encoding.GONE) for t, names in state.ignorable.items()}
    known = {t: {**before.get(t, {}), **gone.get(t, {})} for t in {*before, *gone}}
    found = [t for t in encoding.rewritten(known, now) if t in _known(state)]
    if found:
        control.resnapshot(config, found, RETYPED)
        log.warning("table.written_otherwise", tables=found)
    after = known | {t: {**known.get(t, {}), **columns} for t, columns in now.items()}
    if after != before:
        checkpoint.note_written(after)

    def note(found: encoding.Written) -> None:
        checkpoint.check_owner()  # the next owner has noted more
        checkpoint.note_written(found)

    return Forms(after, note)


def _known(state: PipelineState) -> set[str]:
    """Return tables that have rows, also those that the configuration does not name now."""
    return {*state.tables, *state.left}


def _encoding_of(connector: Connector) -> dict[str, str]:
    order = positions.ARRIVAL if connector.by_arrival else None
    return encoding.of(connector.settings, order=order)


def require_source(checkpoint: Checkpoint, connector: Connector) -> None:
    """Raise `PipelineError` (`connector-changed`) if the checkpoint is of another source."""
    before, now = checkpoint.decoding(connector.qualifier), _encoding_of(connector)
    moved = [] if before is None else encoding.changed(before, now, encoding.SOURCE)
    if before is not None and moved:
        was = ", ".join(f"{name} was {before.get(name)!r}" for name in moved)
        new = ", ".join(f"is {now.get(name)!r}" for name in moved)
        raise PipelineError(
            f"the checkpoint was made with another connector: {was}, {new}",
            code="connector-changed",
            hint=_ANOTHER_ORDER
            if encoding.ORDER in moved
            else "set it back; or, if that is meant, give the pipeline a new checkpoint and "
            "snapshot its tables again",
        )
