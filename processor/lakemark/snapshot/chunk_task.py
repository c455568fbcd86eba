"""One chunk, as a task reads and writes it: database → typed rows → parts in the chunks topic.

Plain functions without Spark, which `jobs` calls in Spark's Python workers. A worker process keeps
its database session and its Kafka producer for the next chunk; an error drops them.

Order of effects of `run_chunk`:

1. the rows are read in one read-only transaction, which ends before anything is written;
2. the parts are written;
3. the result is returned when all of them are acknowledged.

An error anywhere ends the attempt: some of its parts may be in the topic, and another chunk must
never be read under its number.
"""

import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from lakemark.connectors.database import (
    STATEMENT_TIMEOUT,
    ChunkReader,
    ChunkRows,
    Database,
    DatabaseAccess,
    RowsOfSnapshot,
    visible,
)
from lakemark.connectors.registry import database_of
from lakemark.errors import ConfigError, LakemarkError
from lakemark.kafka import records
from lakemark.kafka.client_errors import away
from lakemark.model import positions, row_digest
from lakemark.model.change_batch import WriteFile
from lakemark.model.checksums import NumberRanges
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Boundary, Condition, KeyRange, halves
from lakemark.settings.config import Config
from lakemark.sink import comparison
from lakemark.snapshot import chunks
from lakemark.snapshot.chunks import (
    ChunkError,
    ChunkPart,
    ChunkResult,
    ChunkSpec,
    Digest,
    KeyedRows,
)

if TYPE_CHECKING:
    from confluent_kafka import Producer

_HALVED: Final = frozenset({chunks.STATEMENT_TIMEOUT, chunks.TOO_LARGE})
_INDIVISIBLE: Final = (
    "the rows of this chunk have one value of what orders the chunks, or none, as many NULLs in a "
    "unique index: take another surrogate-key, or the primary key"
)
_REPORT: Final = "this is a defect of lakemark: please report it with the log of the worker"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings of a read; they hold secrets, so they are never shown.

    Attributes:
        config: the pipeline's settings.
        modes: how the connector writes values.
        connector: the connector's configuration.
        write_file: writes rows to a data file beside their table; None where none are written.
        statement_timeout: of the SELECT.
        qualifier: of the names of the connector's tables.
    """

    config: Config = field(repr=False)
    modes: HandlingModes
    connector: Mapping[str, str] = field(repr=False)
    write_file: WriteFile | None = None
    statement_timeout: timedelta = STATEMENT_TIMEOUT
    qualifier: str = ""

    @property
    def access(self) -> DatabaseAccess:
        """The settings for sessions of the source database.

        Raises:
            ConfigError: none is configured.
        """
        if self.config.database is None:
            raise ConfigError(
                "there is no database to read snapshots from", hint="add the section database"
            )
        return DatabaseAccess(
            self.config.database,
            self.modes,
            self.connector,
            self.statement_timeout,
            self.qualifier,
        )

    @property
    def source(self) -> Database:
        """The source database; raises as `access`."""
        return database_of(self.access)


def run_chunk(
    spec: ChunkSpec,
    settings: ReadSettings,
    *,
    again: bool = False,
    clients: "OpenClients | None" = None,
) -> ChunkResult:
    """Read a chunk and write its parts. Never raises: an error stands in the result.

    Args:
        spec: the chunk and its attempt.
        settings: of the read, and where to write.
        again: whether Spark runs this task for another time. Then nothing is read: the first may
            still be writing under the same attempt.
        clients: open from an earlier chunk, not used by another thread; None = the process's.
    """
    begun, clients = time.monotonic(), clients or _kept
    if again:
        return ChunkResult(
            attempt=spec.attempt,
            error=ChunkError(
                code=chunks.RETRIED,
                message="a task that read a chunk was lost",
                hint="the chunk is read again under another attempt",
                retried=True,
            ),
        )
    try:
        return _run(spec, settings, begun, clients)
    except LakemarkError as error:
        clients.drop()
        return _failed(spec, settings, begun, error, clients)
    except Exception as error:  # noqa: BLE001 - a failed task would be run again under its number
        clients.drop()
        return ChunkResult(
            attempt=spec.attempt,
            seconds=time.monotonic() - begun,
            error=ChunkError(
                code=chunks.INTERNAL,
                message=type(error).__name__,
                hint=_REPORT,
                trace=_trace(error),
            ),
        )


def _run(
    spec: ChunkSpec, settings: ReadSettings, begun: float, clients: "OpenClients"
) -> ChunkResult:
    if spec.ranges is not None and spec.digest is not None:
        return _summed(spec, spec.digest.schema, spec.ranges, clients.reader_of(settings), begun)
    rows = clients.reader_of(settings).read(
        spec.table,
        span=spec.span,
        condition=spec.condition,
        keys=spec.keys,
        surrogate=spec.surrogate,
    )
    chunk, absent = rows.found, rows.absent
    read = time.monotonic()
    if spec.digest is not None:
        return _digested(spec, spec.digest, chunk, begun)
    lo, parts = _filed(spec, rows, settings) or (
        "",
        chunks.parts(
            spec,
            chunk.schema,
            KeyedRows(chunk.keys, chunk.rows),
            absent=None if absent is None else KeyedRows(absent.keys, absent.rows),
            source_ts=rows.source_ts,
            max_record_bytes=settings.config.dead_letters.max_record_bytes,
            told=settings.config.output is not None,
        ),
    )
    counts = _write(parts, spec, settings.config, clients.producer_of(settings.config))
    bad = [(key.decode(), code) for key, code, _ in chunk.bad[: chunks.MAX_BAD]]
    return ChunkResult(
        attempt=spec.attempt,
        rows=chunk.rows.num_rows,
        absent=0 if absent is None else absent.rows.num_rows,
        parts=counts,
        proof=chunk.proof,
        fingerprint=chunk.schema.fingerprint(),
        bad=tuple(bad),
        bad_rows=len(chunk.bad),
        clamped=chunk.clamped,
        lo=lo,
        bytes=chunk.keys.nbytes if lo else chunk.rows.nbytes,
        seconds=time.monotonic() - begun,
        read_seconds=read - begun,
    )


def _summed(
    spec: ChunkSpec, kept: pa.Schema, ranges: NumberRanges, reader: ChunkReader, begun: float
) -> ChunkResult:
    found = reader.sums(spec.table, kept, ranges)
    return ChunkResult(
        attempt=spec.attempt,
        rows=int(found.sums.counts.sum()),
        fingerprint=found.schema.fingerprint(),
        bytes=found.sums.nbytes,
        seconds=time.monotonic() - begun,
        sums=found.sums,
    )


def _digested(spec: ChunkSpec, how: Digest, chunk: RowsOfSnapshot, begun: float) -> ChunkResult:
    """Return the digests of a chunk's rows, or the keys that are suspected."""
    key = chunk.schema.key
    rows = row_digest.digests(comparison.as_kept(chunk.rows, how.schema, key=key), key)
    found = ChunkResult(
        attempt=spec.attempt,
        rows=chunk.rows.num_rows,
        fingerprint=chunk.schema.fingerprint(),
        bytes=chunk.rows.nbytes,
        seconds=time.monotonic() - begun,
    )
    if how.suspects is None:
        return replace(found, digests=rows)
    suspected = np.flatnonzero(row_digest.among(rows.keys, how.suspects))
    return replace(found, keys=tuple(chunk.keys.take(pa.array(suspected)).to_pylist()))


def _filed(
    spec: ChunkSpec, read: ChunkRows, settings: ReadSettings
) -> tuple[str, Iterator[ChunkPart]] | None:
    """Write the rows to a data file, where they may go to one.

    A file's rows cannot be changed afterwards, so their position must be known now. Rows of a list
    of keys stay records: they are few, and some of the keys may have no row.

    Returns:
        the window whose position the rows have, and the parts; None where no file may be written.
    """
    write, chunk, rows = settings.write_file, read.found, read.found.rows
    if write is None or spec.keys is not None or not rows.num_rows or not write.wanted(spec.table):
        return None
    lo = visible(chunk.proof, spec.opens)
    if lo is None:
        return None
    place = chunk.proof.place
    file = write(
        spec.table,
        rows,
        key=chunk.schema.key,
        position=positions.of_epoch(spec.epoch, place) if place else lo.position(spec.epoch),
        source_ts=read.source_ts,
        run=spec.run if spec.surrogate is None else "",
        rebuild=spec.rebuild,
    )
    if file is None:
        return None
    limit = settings.config.dead_letters.max_record_bytes
    return lo.window, chunks.filed(
        spec, chunk.schema, chunk.keys, file, source_ts=read.source_ts, max_record_bytes=limit
    )


def _write(
    parts: Iterator[ChunkPart], spec: ChunkSpec, config: Config, client: "Producer"
) -> dict[int, int]:
    """Write the parts, made one by one, and wait for all; return their number by shard."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    counts: dict[int, int] = {}
    for part in parts:
        try:
            client.produce(
                config.topics.chunks, part.value, part.key,
                headers=list(part.headers), on_delivery=delivered,
            )  # fmt: skip
        except (BufferError, KafkaException) as error:
            raise _refused(error.args[0], spec, config) from error
        client.poll(0)
        for shard in part.shards:
            counts[shard] = counts.get(shard, 0) + 1
    # A second more than a record may take, so that its own error is seen.
    left = client.flush(config.kafka.timeout.total_seconds() + 1)
    if failed:
        raise _refused(failed[0], spec, config)
    if left:
        raise away(config, f"{left} parts of a chunk were not acknowledged")
    return counts


def _refused(error: object, spec: ChunkSpec, config: Config) -> LakemarkError:
    code = error.code() if isinstance(error, KafkaError) else None
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return chunks.row_too_large(spec.table, config.dead_letters.max_record_bytes)
    return away(config, error.str() if isinstance(error, KafkaError) else "the queue is full")


# -- what a worker process keeps ----------------------------------------------------------------


@dataclass
class OpenClients:
    """A worker's open clients and the settings that they have. For one thread at a time."""

    access: DatabaseAccess | None = None
    reader: ChunkReader | None = None
    config: Config | None = None
    producer: "Producer | None" = None

    def reader_of(self, settings: ReadSettings) -> ChunkReader:
        """Return the reader of chunks, a new one where the settings have changed."""
        access = settings.access
        if self.reader is None or self.access != access:
            self._drop_reader()
            self.reader, self.access = settings.source.reader(), access
        return self.reader

    def producer_of(self, config: Config) -> "Producer":
        """Return the producer, a new one where the settings have changed."""
        if self.producer is None or self.config != config:
            self.producer, self.config = records.producer(config), config
        return self.producer

    def drop(self) -> None:
        """Close the clients: after an error none of them is trusted.

        Records that wait in the producer are given up; those on their way belong to an attempt
        that is over.
        """
        self._drop_reader()
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.purge()

    def _drop_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()


_kept = OpenClients()
"""Of this process: Spark gives a worker one task at a time."""


# -- errors ---------------------------------------------------------------------------------------


def _failed(
    spec: ChunkSpec,
    settings: ReadSettings,
    begun: float,
    error: LakemarkError,
    clients: OpenClients,
) -> ChunkResult:
    cut: tuple[KeyRange, ...] = ()
    hint, retried = error.hint, error.retried
    if error.code in _HALVED and spec.keys is None and spec.ranges is None:
        try:
            cut = _halves(spec, settings, error.code, clients)
        except LakemarkError:
            clients.drop()  # then the whole is read again
        except Exception:  # noqa: BLE001
            clients.drop()
        else:
            if not cut and error.code == chunks.TOO_LARGE:
                hint, retried = _INDIVISIBLE, False
    return ChunkResult(
        attempt=spec.attempt,
        seconds=time.monotonic() - begun,
        error=ChunkError(
            code=error.code,
            message=error.message,
            hint=hint,
            retried=retried,
            halves=cut,
        ),
    )


def _halves(
    spec: ChunkSpec, settings: ReadSettings, code: str, clients: OpenClients
) -> tuple[KeyRange, ...]:
    """Return the halves of the chunk's range; none if it has no two keys.

    A filter that made the chunk slow makes the search for its middle as slow: then the middle of
    all keys is taken.
    """
    late = code == chunks.STATEMENT_TIMEOUT
    for condition in dict.fromkeys((None, spec.condition) if late else (spec.condition, None)):
        try:
            found = halves(spec.span, _middle(spec, settings, condition, clients))
        except LakemarkError as error:
            if error.code != chunks.STATEMENT_TIMEOUT:
                raise
        else:
            return tuple(found) if len(found) > 1 else ()
    return ()


def _middle(
    spec: ChunkSpec, settings: ReadSettings, condition: Condition | None, clients: OpenClients
) -> Boundary | None:
    reader = clients.reader_of(settings)
    return reader.middle(spec.table, spec.span, condition=condition, surrogate=spec.surrogate)


def _trace(error: BaseException) -> str:
    """Return where an error happened, without the messages, which may quote values."""
    frames = traceback.extract_tb(error.__traceback__)[-20:]
    return "".join(f"{f.filename}:{f.lineno} in {f.name}\n" for f in frames) + type(error).__name__
