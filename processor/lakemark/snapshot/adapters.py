"""The coordinator's real ports: Kafka's topics, the database, the runner's tasks; see `ports`."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from lakemark.connectors.connect_rest import ConnectRest
from lakemark.connectors.connector import Connector
from lakemark.connectors.connector import read as read_connector
from lakemark.connectors.database import OpenWindow, Proof, TableQuestions, Watermark, WindowWriter
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.connectors.registry import database_kind, traits_of
from lakemark.connectors.table_choice import Choice
from lakemark.converters.registry import converter_of
from lakemark.errors import DependencyError, LakemarkError, TableError
from lakemark.kafka import records
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_errors import Admission
from lakemark.kafka.client_settings import by_offset
from lakemark.model.checksums import RefusedSums, even_ranges
from lakemark.model.columns import Column
from lakemark.model.control import ControlRecord, encode
from lakemark.model.key import canonical_from_columns
from lakemark.model.key_ranges import Condition, KeyRange
from lakemark.model.row_digest import RowDigests, Words, among, digests
from lakemark.model.schema import TableSchema
from lakemark.settings.config import Config
from lakemark.sink import found_rows
from lakemark.sink.table_format import TableReader
from lakemark.snapshot import kept_checksums
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.ports import (
    Committed,
    Cut,
    KeptDigests,
    KeptSums,
    RowsWithin,
    SummedTable,
)
from lakemark.snapshot.signal_skip import SIGNALS_KEY
from lakemark.snapshot.signals import Rejection, SignalRecord
from lakemark.state import progress

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from lakemark.model.offsets import Offsets

log = structlog.get_logger(__name__)

_SIGNAL_HINT: Final = (
    "CREATE TABLE public.debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, "
    "data varchar(2048)); set signal.data.collection of the connector to public.debezium_signal "
    "and let it capture the table"
)
# For so long somebody who was the owner is: far shorter than it takes to be superseded. Longer than
# the records of one step take, so that they are asked about once.
_OWNED_S: Final = 0.1


class _Counted:
    """Rows of the lake, and the bytes of those that have been gone through."""

    def __init__(self, rows: Iterable[pa.Table]) -> None:
        self.rows, self.bytes = rows, 0

    def __iter__(self) -> Iterator[pa.Table]:
        for one in self.rows:
            self.bytes += one.nbytes
            yield one


def _within(rows: pa.Table, within: RowsWithin | None) -> pa.Table:
    if within is None:
        return rows
    numbers = kept_checksums.numbers_of(rows.column(within.order))
    return rows.filter(pa.array(within.chosen[within.ranges.of(numbers)]))


class ChunkRunner(Protocol):
    """The part of `BatchRunner` that reads chunks."""

    def read_chunk(self, spec: ChunkSpec, settings: ReadSettings) -> ChunkResult:
        """Read one chunk and wait for it. From any thread; never raises."""


@dataclass
class Adapters:
    """The real ports. For one thread, but for what goes through `submit`.

    Attributes:
        reader: reads chunks.
        lake: reads a table of the lake, given its name.
        owned: raises unless this process still runs the pipeline. A process that slept, and was
            superseded meanwhile, is asked when it wakes: before it writes anything more.
        wrapped: whether the schemas that a table's records carry are known.
        watched: whether changes of a table that no event tells are noticed from now on.
        schemas: the tables that the connector captures, as the database had them when last asked.
    """

    reader: ChunkRunner
    config: Config
    connector: Connector
    settings: ReadSettings
    lake: Callable[[str], TableReader]
    owned: Callable[[], None]
    wrapped: Callable[[str], bool]
    watched: Callable[[str], bool] = lambda _: True
    _pool: ThreadPoolExecutor = field(init=False)
    _ticker: ThreadPoolExecutor = field(init=False)
    _questions: TableQuestions | None = None
    _windows: WindowWriter | None = None
    _closed: bool = False
    _producer: "Producer | None" = None
    _owned_until: float = float("-inf")
    _consumer: Consumer | None = None
    _admission: Admission | None = None
    _offsets: dict[int, int] = field(default_factory=dict)
    schemas: dict[str, TableSchema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workers = self.config.snapshot.parallelism + 2  # readers, a cut and a check
        self._pool = _pool(workers, "snapshot")
        self._ticker = _pool(1, "snapshot-ticks")

    def close(self) -> None:
        """Close the connections, write nothing more; reads under way end by themselves."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._windows is not None:
            self._windows.cancel()  # its commit may wait for a standby
            self._ticker.submit(self._windows.drop)
        self._ticker.shutdown(wait=False)
        if self._questions is not None:
            self._questions.drop()
        if self._consumer is not None:
            self._consumer.close()

    # -- topics ---------------------------------------------------------------------------------

    def load(self) -> dict[bytes, bytes]:
        """See `Ports`."""
        every = records.read_compacted(self.config, self.config.topics.progress)
        kept = progress.of_connector(every, self.connector.qualifier)
        place = kept.get(SIGNALS_KEY)
        self._offsets = msgspec.json.decode(place, type=dict[int, int]) if place else {}
        return {key: value for key, value in kept.items() if key.startswith(b"_")}

    def save(self, records_: Mapping[bytes, bytes | None]) -> None:
        """See `Ports`."""
        own = [
            (progress.key_of(self.connector.qualifier, key), value)
            for key, value in records_.items()
        ]
        self._publish(self.config.topics.progress, own)

    def control(self, records_: Sequence[ControlRecord]) -> None:
        """See `Ports`."""
        told = {"ts_ms": self.now_ms(), "connector": self.connector.qualifier}
        values = [encode(msgspec.structs.replace(record, **told)) for record in records_]
        self._publish(self.config.topics.control, [(b"_snapshot", value) for value in values])

    def notify(self, notifications: Sequence[Notification]) -> None:
        """See `Ports`."""
        topic = self.config.topics.notifications
        self._publish(topic, [(one.key(), one.value()) for one in notifications])

    def _publish(self, topic: str, messages: Sequence[tuple[bytes, bytes | None]]) -> None:
        if self._closed:  # a step that took long ends beside its successor
            raise DependencyError("the query has ended", code="superseded")
        now = self.monotonic()
        if now >= self._owned_until:
            self.owned()
            self._owned_until = now + _OWNED_S
        client, self._producer = self._producer or records.producer(self.config), None
        records.publish(self.config, topic, messages, client=client)
        self._producer = client

    def signals(self) -> list[SignalRecord]:
        """See `Ports`."""
        consumer = self._consumer or self._subscribed()
        signals, messages = [], consumer.consume(100, timeout=0)
        self._still_admitted()  # else they are read again by another consumer
        for message in messages:
            if message.error() is not None:
                continue  # the client tries again; other partitions go on
            partition, offset = int(message.partition() or 0), int(message.offset() or 0)
            self._offsets[partition] = offset + 1
            record = SignalRecord(
                _bytes(message.key()),
                _bytes(message.value()),
                place=f"{partition}-{offset}",
                unnamed=f"{self.config.topics.signals}-{partition}-{offset}",
                stands=msgspec.json.encode(self._offsets),
            )
            signals.append(record)
        return signals

    def _still_admitted(self) -> None:
        """Replace a consumer whose password is no longer the right one."""
        if self._admission is None:
            return
        try:
            self._admission.require()
        except LakemarkError:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()
            raise

    def _subscribed(self) -> Consumer:
        topic = self.config.topics.signals
        with Cluster(self.config) as cluster:
            count = cluster.partition_counts([topic]).get(topic, 1)
        self._admission = Admission()
        consumer = Consumer(
            {
                **by_offset(self.config),
                "error_cb": self._admission,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign(
            [TopicPartition(topic, n, self._offsets.get(n, OFFSET_BEGINNING)) for n in range(count)]
        )
        self._consumer = consumer
        return consumer

    # -- database -------------------------------------------------------------------------------

    def refusal(self) -> Rejection | None:
        """See `Ports`."""
        if self.config.database is None:
            return Rejection(
                "",
                "no-database",
                "this pipeline has no database to read snapshots from",
                "add the section database to its configuration",
            )
        if traits_of(self.connector.settings, self.config.database).reads_know_their_place:
            return None
        signal = self.connector.signal_table
        if signal is None:
            return Rejection(
                "", "no-signal-table", "the connector has no signal table", _SIGNAL_HINT
            )
        topic = self.connector.topic_of(signal)
        # With transforms nobody knows what its topic is called in the end.
        if not self.connector.settings.get("transforms") and not self.connector.wanted.topic(topic):
            return Rejection(
                "", "signal-topic-not-read",
                f"source.topics leaves out {topic}: the windows of snapshots come in that topic",
                f"let source.topics match {topic} too",
            )  # fmt: skip
        return None

    def tables(self) -> dict[str, TableSchema]:
        """See `Ports`."""
        signal, captured = self.connector.signal_table, self._captured()
        found = self.settings.source.schemas(None, captured=captured)
        self._asked().forget()
        self.schemas = {
            table: schema
            for table, schema in found.items()
            if table in captured and table != signal
        }
        return self.schemas

    def _captured(self) -> Choice:
        """Return the connector's tables as configured now: one may have been added since."""
        try:
            return read_connector(self.config, attempts=1).tables
        except LakemarkError:  # what was known of it last
            return self.connector.tables

    def reasons_against(self, table: str) -> Rejection | None:
        """See `Ports`."""
        found = self.settings.source.reasons_against(table)
        if found:
            return Rejection("", found[0].code, found[0].message, found[0].hint)
        describes = self.connector.writer is not None and self.config.database is not None
        waits = self.connector.wraps and not describes
        if self.config.output and waits and not self.wrapped(table):
            plain = converter_of(self.connector.converter).without_schemas
            return Rejection(
                "",
                "output-not-ready",
                f"records of {table} carry schemas, and none of them has come yet: how its rows "
                "are written to its output topic is not known",
                f"change a row of the table, or {plain}",
            )
        return None

    def condition(self, table: str, text: str) -> Condition:
        """See `Ports`."""
        return self._asked().condition(table, text)

    def texts(self, table: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """See `Ports`."""
        texts_by_key: dict[str, list[str]] = {}
        if not keys:
            return texts_by_key
        columns = self._asked().key_columns(table)
        for key in keys if columns else ():
            try:
                (texts_by_key[key],) = map(
                    list, self.settings.source.key_texts([key.encode()], columns)
                )
            except TableError as error:
                log.warning("snapshot.key_unreadable", table=table, code=error.code)
        return texts_by_key

    def _key(self, table: str) -> list[Column]:
        """Return the columns of a table's key; none if there is no such table. From any thread.

        Raises:
            DependencyError: the database is away.
        """
        known = self.schemas.get(table) or self.settings.source.schemas([table]).get(table)
        return [known.column(name) for name in known.key] if known is not None else []

    def tick(
        self, *, closes: OpenWindow | None, opens: OpenWindow | None, reached: ReachedPlace
    ) -> Watermark | Proof:
        """See `Ports`."""
        if self._windows is None:
            self._windows = self.settings.source.window_writer(
                self.connector.signal_table or "", name=f"lakemark {self.config.name} windows"
            )
        return self._windows.write(closes=closes, opens=opens, reached=reached)

    def committed(self, epoch: int) -> Committed:
        """See `Ports`."""
        position = b""
        if self.config.source.connect is not None:
            with ConnectRest(self.config.source.connect) as connect:
                server = self.connector.topic_prefix
                kind = database_kind(self.connector.settings)
                position = kind.committed_position(connect.offsets(), epoch, server=server)
        ends: Offsets = {}
        if position:
            with Cluster(self.config) as cluster:
                topics = cluster.topics(self.connector.topic_pattern)
                for (topic, partition), end in cluster.end_offsets(topics, committed=False).items():
                    ends.setdefault(topic, {})[partition] = end
        return Committed(position, ends)

    def blocker(self, proof: Proof) -> str:
        """See `Ports`."""
        return self._asked().blocker(proof)

    def _asked(self) -> TableQuestions:
        if self._questions is None:
            name = f"lakemark {self.config.name} conditions"
            self._questions = self.settings.source.questions(name=name)
        return self._questions

    # -- elsewhere ------------------------------------------------------------------------------

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None,
        surrogate: str | None,
        within: KeyRange,
    ) -> Cut:
        """See `Ports`."""
        found = self.settings.source.cut(
            table, chunk_rows, condition=condition, surrogate=surrogate, within=within
        )
        return Cut(found.spans, found.fingerprint, found.rows)

    def fingerprint(self, table: str) -> str:
        """See `Ports`."""
        schemas = self.settings.source.schemas([table])
        if table not in schemas:
            raise TableError(
                f"there is no table {table}",
                code="table-gone",
                hint="correct the name, or take the table out of the configuration",
            )
        return schemas[table].fingerprint()

    def partial_keys(self, table: str) -> tuple[str, ...]:
        """See `Ports`."""
        key = self._key(table)
        keys = self.lake(table).incomplete_keys(key) if key else []
        return tuple(one.decode("utf-8", "replace") for one in keys)

    def kept(self, table: str) -> pa.Schema | None:
        """See `Ports`."""
        kept = self.lake(table).schema()
        known = self.schemas.get(table) or self.settings.source.schemas([table]).get(table)
        if kept is None or known is None:
            return None
        return pa.schema([field for field in kept if field.name in known.by_name])

    def summed_table(self, table: str, kept: pa.Schema) -> SummedTable | None:
        """See `Ports`."""
        plan = self.settings.source.checksums(table, kept)
        if isinstance(plan, RefusedSums) or not kept_checksums.ready():
            reason = plan.reason if isinstance(plan, RefusedSums) else "nothing can be compiled"
            log.info("verify.reads_rows", table=table, reason=reason)
            return None
        rows = self.lake(table).rows([plan.order])
        numbers = (kept_checksums.numbers_of(one.column(plan.order)) for one in rows)
        return SummedTable(plan, even_ranges(numbers))

    def kept_sums(self, table: str, summed: SummedTable) -> KeptSums:
        """See `Ports`."""
        names = [one.name for one in summed.plan.columns]
        read = _Counted(self.lake(table).rows(names))
        return KeptSums(kept_checksums.summed(read, summed.plan, summed.ranges), read.bytes)

    def kept_digests(
        self, table: str, kept: pa.Schema, within: RowsWithin | None = None
    ) -> KeptDigests:
        """See `Ports`."""
        key = [column.name for column in self._key(table)]
        read = _Counted(self.lake(table).rows(kept.names))
        parts = [digests(_within(rows, within), key) for rows in read]
        return KeptDigests(RowDigests.joined(parts), read.bytes)

    def kept_keys(self, table: str, suspects: Words) -> list[bytes]:
        """See `Ports`."""
        key = self._key(table)
        names = [column.name for column in key]
        found: list[bytes] = []
        for rows in self.lake(table).rows(names):
            suspected = np.flatnonzero(among(digests(rows, names).keys, suspects))
            hits = rows.take(pa.array(suspected))
            columns = [hits.column(name) for name in names]
            found += canonical_from_columns(columns, key).to_pylist()
        return found

    def found(self, run: str, table: str) -> Mapping[str, int]:
        """See `Ports`."""
        return found_rows.counts(self.config.lake, run, table)

    def read(self, spec: ChunkSpec) -> ChunkResult:
        """See `Ports`."""
        own = replace(spec, connector=self.connector.qualifier)
        return self.reader.read_chunk(own, self.settings)

    def submit(self, work: Callable[[], None]) -> None:
        """See `Ports`."""
        self._queue(self._pool, work)

    def submit_tick(self, work: Callable[[], None]) -> None:
        """See `Ports`."""
        self._queue(self._ticker, work)

    def _queue(self, pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        """Submit work; where no thread can be started, it waits for one of those that run."""
        try:
            pool.submit(work)
        except RuntimeError:
            if self._closed:
                raise

    def monotonic(self) -> float:
        """See `Ports`."""
        return time.monotonic()

    def now_ms(self) -> int:
        """See `Ports`."""
        return int(time.time() * 1000)

    def uuid(self) -> str:
        """See `Ports`."""
        return str(uuid.uuid4())


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool with one thread started: so its work is done even if no other can start."""
    pool = ThreadPoolExecutor(threads, name)
    pool.submit(_nothing)
    return pool


def _nothing() -> None:
    """Do nothing; a pool starts a thread for it."""


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
