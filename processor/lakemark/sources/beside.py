"""All that goes on beside a pipeline's query, for each of its connectors.

| what | does |
|---|---|
| connector watch | has the query started again when a connector is not as it was |
| catalog watch | finds and follows what no event tells |
| source watch | shows whether changes come to Kafka (`ops.feeds`) |
| coordinator | takes snapshots on signals |
| sent events | asks how far the connector is, while somebody waits for it (`ops.waits`) |

Each connector has its own of each: who is away is waited for by nobody else.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from lakemark.connectors.catalog_changes import Cascades
from lakemark.model.schema import TableSchema
from lakemark.ops import feeds
from lakemark.ops.board import Board
from lakemark.ops.catalog_watch import CatalogWatch
from lakemark.ops.sent_events import ConnectorEvents
from lakemark.settings.config import Config
from lakemark.sink import formats
from lakemark.sink.names import folder_of
from lakemark.snapshot import snapshots
from lakemark.snapshot.adapters import Adapters, ChunkRunner
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.snapshot_state import Settings
from lakemark.snapshot.snapshots import Snapshots
from lakemark.snapshot.verification import Verification
from lakemark.sources.connecting import ANSWER_S
from lakemark.sources.schema_topics import Look
from lakemark.sources.source_set import PipelineSource, Sources
from lakemark.state.advance import News
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.connector_drift import Watch
from lakemark.state.encoding import Forms
from lakemark.state.tables import PipelineState

_STOP_S: Final = 0.2  # so soon a stop is noticed
_Found = TypeVar("_Found")


@dataclass
class Beside:
    """Watches and coordinators beside one query; what the query asks for is joined here.

    Attributes:
        config: the settings.
        sources: the connectors.
        runner: of the query; it reads chunks.
        checkpoint: the pipeline's.
        forms: how columns are written.
        board: is told what is seen.
        state: the tables as the newest batch left them.
        every: the qualifiers of all connectors, of those too that are away.
        sent_events: how far each connector is, for who waits.
    """

    config: Config
    sources: Sources
    runner: ChunkRunner
    checkpoint: Checkpoint
    forms: Forms
    board: Board
    state: Callable[[], PipelineState]
    every: frozenset[str] = frozenset()
    _catalogs: list[CatalogWatch] = field(default_factory=list)
    _worlds: list[Adapters] = field(default_factory=list)
    _snapshots: list[Snapshots] = field(default_factory=list)
    _watches: list[Watch] = field(default_factory=list)
    sent_events: list[ConnectorEvents] = field(init=False)

    def __post_init__(self) -> None:
        self.sent_events = [
            ConnectorEvents(one.config, one.connector, one.connector.name if one.qualifier else "")
            for one in self.sources.of
        ]
        for source in self.sources.of:
            tell = partial(self.board.catalog, connector=source.qualifier)
            self._catalogs.append(
                CatalogWatch(source.config, source.connector, self.checkpoint, self.state, tell)
            )

    def look_once(self) -> None:
        """Look at every catalog, at all of them at once."""
        with ThreadPoolExecutor(len(self._catalogs)) as looks:
            for _ in looks.map(CatalogWatch.try_to_look, self._catalogs):
                pass

    @contextmanager
    def running(self, stopping: threading.Event) -> Iterator["Beside"]:
        """Let everything go on while the block runs.

        Args:
            stopping: set when the process is about to end as it was told to.
        """
        watched = [(source.config, source.connector) for source in self.sources.of]
        patterns = self.sources.topic_patterns
        beside = [*zip(self.sources.of, self._catalogs, strict=True)]
        with ExitStack() as stack:
            stack.enter_context(feeds.running(self.config, self.board, watched, patterns, stopping))
            for source, catalog in beside:
                watch = Watch(source.config, source.connector, self.forms)
                self._watches.append(stack.enter_context(watch.running()))
                stack.enter_context(catalog.running())
            self._wait_for_looks(stopping)
            for source, catalog in beside:
                self._snapshots.append(stack.enter_context(self._coordinator(source, catalog)))
            stack.callback(self._end_snapshots)
            for one in self.sent_events:
                stack.callback(one.close)
            yield self

    def _wait_for_looks(self, stopping: threading.Event) -> None:
        """Wait for the first look at every catalog; of several no longer than `ANSWER_S`."""
        until = time.monotonic() + (ANSWER_S if self.sources.several else math.inf)
        for catalog in self._catalogs:
            while not catalog.looked.wait(_STOP_S):
                if stopping.is_set() or time.monotonic() > until:
                    break

    def _end_snapshots(self) -> None:
        """Have all coordinators end at once: each may wait for its database for a while."""
        for one in self._snapshots:
            one.stopping.set()

    def _coordinator(
        self, source: PipelineSource, catalog: CatalogWatch
    ) -> AbstractContextManager[Snapshots]:
        world, settings = self._world(source, catalog), self._settings(source)
        self._worlds.append(world)
        tell = partial(self.board.flight, connector=source.qualifier)
        return snapshots.running(world, settings, self.state(), self.checkpoint.query_id, tell)

    def require_same(self) -> None:
        """Raise `ChangedError` once a connector was seen to differ."""
        for watch in self._watches:
            watch.require_same()

    def same_connector(self, table: str) -> bool:
        """Say whether a table's connector is as it was at the start, see `Watch.is_same`."""
        every = zip(self.sources.of, self._watches, strict=False)
        own = next((watch for source, watch in every if source.has(table)), None)
        return own is None or own.is_same()

    def planned(self, armed: frozenset[str]) -> None:
        """See `Snapshots.planned`."""
        for one in self._snapshots:
            one.planned(armed)

    def committed(self, state: PipelineState, news: News) -> None:
        """See `Snapshots.committed`."""
        for one in self._snapshots:
            one.committed(state, news)

    @property
    def hasty(self) -> bool:
        """Say whether any run makes progress, see `Snapshots.hasty`."""
        return any(one.hasty for one in self._snapshots)

    def newest_version(self, table: str) -> int | None:
        """Return the number of a table's newest version in the lake; None if there is none.

        Raises:
            DependencyError: the lake does not answer or refuses.
            TableError: the folder holds something else.
        """
        lake = self.config.lake
        path = folder_of(lake, table)
        return formats.format_of(lake).reader_of(path, lake.options()).version()

    # -- what the batches ask for -----------------------------------------------------------------

    def look_soon(self) -> None:
        """Have every catalog looked at soon, see `CatalogWatch.look_soon`."""
        for catalog in self._catalogs:
            catalog.look_soon()

    def columns(self, state: PipelineState) -> Mapping[str, frozenset[str]]:
        """Return what `CatalogWatch.columns` says of all tables."""
        return _joined(catalog.columns(state) for catalog in self._catalogs)

    def numerics(self) -> Mapping[str, frozenset[str]]:
        """Return what `CatalogWatch.numerics` says of all tables."""
        return _joined(catalog.numerics() for catalog in self._catalogs)

    def children(self) -> Mapping[str, Cascades]:
        """Return what `CatalogWatch.children` says of all tables."""
        return _joined(catalog.children() for catalog in self._catalogs)

    def looks(self) -> Mapping[str, Look]:
        """Return the newest look at each connector's catalog, by its qualifier."""
        every = zip(self.sources.of, self._catalogs, strict=True)
        return {source.qualifier: look for source, one in every if (look := one.newest)}

    def schemas(self) -> Mapping[str, TableSchema]:
        """Return the schemas that coordinators have read tables with last."""
        return _joined(world.schemas for world in self._worlds)

    # -- snapshots --------------------------------------------------------------------------------

    def _settings(self, source: PipelineSource) -> Settings:
        config, connector = source.config, source.connector
        here = {one.qualifier for one in self.sources.of}
        return Settings(
            pipeline=config.name,
            connector=connector.kind,
            shards=config.stream.shards,
            chunk_rows=config.snapshot.chunk_rows,
            parallelism=config.snapshot.parallelism,
            delay=config.snapshot.chunk_delay.total_seconds(),
            interval=config.snapshot.window_interval.total_seconds(),
            rest=config.snapshot.repair_interval.total_seconds(),
            ordered=config.output is not None,
            completes=config.snapshot.incomplete == "auto" and config.database is not None,
            own_rows=connector.reads_rows,
            own_whole=connector.reads_all_rows,
            watch=config.source.watch_interval.total_seconds(),
            qualifier=source.qualifier,
            every=tuple(sorted(here | self.every)),
            speaks=source.qualifier == min(here),
            verification=_verification(config),
        )

    def _world(self, source: PipelineSource, catalog: CatalogWatch) -> Adapters:
        config, connector = source.config, source.connector
        lake = formats.format_of(config.lake)
        settings = ReadSettings(
            config,
            source.modes,
            connector.settings,
            lake.chunk_files(config),
            qualifier=source.qualifier,
        )
        return Adapters(
            self.runner,
            config,
            connector,
            settings,
            lambda table: lake.reader_of(
                folder_of(config.lake, table, self._rebuild_of(table)), config.lake.options()
            ),
            self.checkpoint.check_owner,
            lambda table: table in self.state().learnt_tables,
            catalog.has_seen,
        )

    def _rebuild_of(self, table: str) -> str:
        entry = self.state().tables.get(table)
        return "" if entry is None else entry.files.rebuild


def _verification(config: Config) -> Verification | None:
    """Return the settings of verification by itself; None where tables are verified by hand."""
    own = config.verify
    if own.every is None:
        return None
    every_ms = round(own.every.total_seconds() * 1000)
    return Verification(every_ms, own.rows_per_second, own.repair, own.chooses)


def _joined(found: "Iterator[Mapping[str, _Found]]") -> Mapping[str, _Found]:
    """Return what is found of the tables of all connectors."""
    every = [*found]
    return every[0] if len(every) == 1 else {k: v for one in every for k, v in one.items()}
