"""Chunks: the request for one read, its result, and its rows as records of the chunks topic.

Pure. The rows of a chunk go to the shards of their keys, as chunk batches of at most
`MAX_PART_BYTES`; each is a *part*, a record of its own. The manifest (a control record) says how
many parts each shard gets: `ChunkResult.parts`. Where the rows are written to a data file
(`filed`), the shards get their keys only, and one record has parts of all shards.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.connectors.database import Proof, Watermark
from lakemark.errors import LakemarkError, TableError
from lakemark.model import change_batch
from lakemark.model.change_batch import ChunkFile, KeyColumns
from lakemark.model.checksums import NumberRanges, RangeSums
from lakemark.model.key_ranges import CUT_TIMEOUT, WHOLE, Boundary, Condition, KeyRange
from lakemark.model.row_digest import RowDigests, Words
from lakemark.model.schema import TableSchema
from lakemark.reconcile.chunks import Header

MAX_PART_BYTES: Final = 900_000
NO_SHARD: Final = -1  # of a record with chunk batches of several as headers
# What a record has besides key and value; Kafka's format needs less than a tenth of it.
_RECORD_OVERHEAD: Final = 1024

# Codes of `ChunkError` that the coordinator looks at.
STATEMENT_TIMEOUT: Final = "statement-timeout"
TABLE_LOCKED: Final = "table-locked"
TOO_LARGE: Final = "chunk-too-large"
ROW_TOO_LARGE: Final = "row-too-large"
RETRIED: Final = "retried"
JOB_FAILED: Final = "job-failed"
BLIND: Final = "unreadable-key"  # why shards void an attempt
NOT_SUMMED: Final = "not-summed"
INTERNAL: Final = "internal-error"
REPORT: Final = "this is a defect of lakemark: please report it with the log"
# Of a list of keys: rows cannot be looked up by them.
BY_NO_KEY: Final = frozenset({"key-unreadable", "key-inexact"})
_OF_A_TABLE: Final = frozenset(
    {TABLE_LOCKED, STATEMENT_TIMEOUT, CUT_TIMEOUT, TOO_LARGE, RETRIED, JOB_FAILED, BLIND}
)


def is_of_a_table(error: LakemarkError) -> bool:
    """Say whether an error keeps only its table from being read, and says nothing about others.

    Errors of the table's folder are such, and those of a worker that ends whenever it reads the
    table's rows.
    """
    return error.code in _OF_A_TABLE or error.code.startswith("lake-")


def blinded(table: str) -> LakemarkError:
    """Return the error for an event with an unreadable key that came while a chunk was read.

    The event may be of any row.
    """
    return LakemarkError(
        f"events of {table} whose keys cannot be read came while it was read",
        code=BLIND,
        hint="see lakemark dlq ls: its chunks are read again until no such event comes meanwhile",
        retried=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """One read of one chunk.

    Attributes:
        run: the run it belongs to.
        table: ``schema.table``.
        chunk: its number in the run and table.
        attempt: of this read; unique and increasing over all reads of the pipeline.
        span: which keys.
        condition: only rows for which it holds.
        keys: only these keys, as `Database.key_texts` gives them; those that the table does not
            have become deletes. None for all keys.
        surrogate: column that spans are of; None = the key.
        shards: number of shards, fixed with the checkpoint.
        opens: windows that the read may take as its `lo`: if it provably sees one, its rows may go
            to a data file, with a position of that window.
        epoch: of such positions.
        rebuild: name of the rebuild that the table is in; empty = none.
        connector: whose table it is, where there are several: see `Connector.qualifier`.
        digest: its rows are digested and go nowhere; None = they are written.
        ranges: their rows are summed, and none is read; None = the rows of the span are read.
    """

    run: str
    table: str
    chunk: int
    attempt: int
    shards: int
    span: KeyRange = WHOLE
    condition: Condition | None = None
    keys: tuple[Boundary, ...] | None = None
    surrogate: str | None = None
    opens: tuple[Watermark, ...] = ()
    epoch: int = 0
    rebuild: str = ""
    connector: str = ""
    digest: "Digest | None" = None
    ranges: NumberRanges | None = None


CanonicalKeys = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """The way in which the rows of a chunk are digested, see `row_digest`.

    Attributes:
        kept: the columns that the lake has of them: an Arrow schema (IPC).
        suspects: digests of keys, sorted: these keys are told, and no digests. None = digests are.
    """

    kept: bytes
    suspects: Words | None = None

    @classmethod
    def of(cls, kept: pa.Schema, suspects: Words | None = None) -> "Digest":
        """Return the way for a table with these columns."""
        return cls(kept.remove_metadata().serialize().to_pybytes(), suspects)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkError:
    """The reason why a chunk was not read. Its attempt is over; parts of it may have been written.

    Attributes:
        code: stable name of the failure, kebab case.
        message: what happened, without cell values.
        hint: what to do about it.
        retried: whether reading again can help without anybody's doing.
        halves: of a range that took too long or is too large: read these instead. Empty if it has
            no two keys, and for a list of keys: cut the list.
        trace: of an `internal-error`, for the log.
    """

    code: str
    message: str
    hint: str = ""
    retried: bool = False
    halves: tuple[KeyRange, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """The result of one read. Without `error` all parts are acknowledged.

    Attributes:
        attempt: as in the spec.
        rows: rows written.
        absent: keys of the list that the table does not have.
        parts: number of parts by shard; shards that got none are not named.
        proof: shows which windows the read saw; known even where an error came after it.
        fingerprint: `TableSchema.fingerprint` of the table when it was read.
        bad: (canonical key, reason code) of rows with a value that the connector cannot carry
            either, see `RowsOfSnapshot`; the first `MAX_BAD`.
        bad_rows: how many there are.
        clamped: values clamped to what Delta can hold.
        lo: window whose position the rows of a data file have; empty without a file.
        bytes: held by the shards until they decide: of the rows, or of the keys where a file has
            the rows.
        seconds: from the beginning of the task to the last acknowledgement.
        read_seconds: of these until the rows were read and typed.
        error: why it failed.
        digests: of the rows, where they were asked for.
        keys: canonical keys whose digests were asked for.
        sums: of ranges, where they were asked for.
    """

    attempt: int
    rows: int = 0
    absent: int = 0
    parts: Mapping[int, int] = field(default_factory=dict)
    proof: Proof | None = None
    fingerprint: str = ""
    bad: tuple[tuple[str, str], ...] = ()
    bad_rows: int = 0
    clamped: int = 0
    lo: str = ""
    bytes: int = 0
    seconds: float = 0.0
    read_seconds: float = 0.0
    error: ChunkError | None = None
    digests: RowDigests | None = None
    keys: CanonicalKeys = ()
    sums: RangeSums | None = None

    @property
    def inexact(self) -> int:
        """The number of values that the lake gets otherwise than the database has them.

        A bad row counts as one.
        """
        return self.bad_rows + self.clamped


MAX_BAD: Final = 1000  # a result travels to the driver


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Typed rows and their canonical keys.

    Attributes:
        keys: canonical keys, one a row, never null.
        rows: columns with their canonical types.
    """

    keys: pa.ChunkedArray
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """One record of the chunks topic.

    Attributes:
        shards: the shards that it has rows of: one, unless the record has headers.
        key: `reconcile.chunks.Header`, JSON.
        value: a chunk batch; None where the headers have them.
        headers: (shard, its chunk batch, encoded) of each.
    """

    shards: tuple[int, ...]
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def parts(
    spec: ChunkSpec,
    schema: TableSchema,
    found: KeyedRows,
    *,
    absent: KeyedRows | None = None,
    source_ts: int,
    max_record_bytes: int,
    max_part_bytes: int = MAX_PART_BYTES,
    told: bool = False,
) -> Iterator[ChunkPart]:
    """Yield the records of a chunk. One without any row has one, empty, for shard 0.

    Args:
        spec: what was asked.
        schema: the table's schema when it was read.
        found: the rows.
        absent: keys of the spec's list that the table does not have, with the key's columns.
        source_ts: of the rows, microseconds since the epoch.
        max_record_bytes: of a record with its key: what producer and topic take.
        max_part_bytes: of a value, unless a single row is larger.
        told: whether each part brings the schema: where rows are written as records, too.

    Raises:
        TableError: ``row-too-large``: a row alone is larger than a record may be.
    """
    key = KeyColumns(schema.key, frozenset(c.name for c in schema.columns if c.padded))
    counts: dict[int, int] = {}
    for make, rows in ((change_batch.reads, found), (change_batch.absences, absent)):
        if rows is None:
            continue
        ratio = 0.0
        for shard, keys, images in _by_shard(rows, spec):
            packet = make(keys, images, source_ts=source_ts, table=spec.table, key_columns=key)
            if told:
                packet = change_batch.with_metadata(packet, schema=schema.to_json())
            values = list(_values(packet, max_part_bytes, ratio))
            ratio = sum(map(len, values)) / packet.nbytes
            for value in values:
                part = counts.get(shard, 0)
                counts[shard] = part + 1
                yield _part(spec, shard, part, value, max_record_bytes)
    if not counts:
        nothing = _struct(found.rows.slice(0, 0))
        packet = change_batch.reads(
            pa.array([], pa.binary()), nothing, source_ts=0, table=spec.table, key_columns=key
        )
        yield _part(spec, 0, 0, change_batch.encode(packet), max_record_bytes)


def filed(
    spec: ChunkSpec,
    schema: TableSchema,
    keys: pa.ChunkedArray,
    file: ChunkFile,
    *,
    source_ts: int,
    max_record_bytes: int,
    max_part_bytes: int = MAX_PART_BYTES,
) -> Iterator[ChunkPart]:
    """Yield the records of a chunk whose rows are in a data file: the keys and row numbers.

    A record has the chunk batches of all shards, so that they decide the chunk in one batch, and
    the file goes into the table at once.

    Args:
        spec: the chunk and its attempt.
        schema: the table's schema when it was read.
        keys: canonical keys of the file's rows, in its order; at least one.
        file: the data file.
        source_ts: of the rows, microseconds since the epoch.
        max_record_bytes: of a record: what producer and topic take.
        max_part_bytes: of the chunk batches in one record, unless one alone is larger.

    Raises:
        TableError: ``row-too-large``: a key is larger than a record may be.
    """
    key_columns = KeyColumns(schema.key, frozenset(c.name for c in schema.columns if c.padded))
    found: list[tuple[int, bytes]] = []
    size = 0
    for shard, at, mine in _keys_by_shard(_whole(keys), spec):
        packet = change_batch.filed(
            mine, at, file, source_ts=source_ts, table=spec.table, key_columns=key_columns
        )
        for part, value in enumerate(_values(packet, max_part_bytes)):
            header = _header(spec, shard, part)
            piece = len(header).to_bytes(4) + header + value
            if found and size + len(piece) > max_part_bytes:
                yield _record(spec, found, max_record_bytes)
                found, size = [], 0
            found.append((shard, piece))
            size += len(piece)
    if found:
        yield _record(spec, found, max_record_bytes)


def _record(spec: ChunkSpec, found: Sequence[tuple[int, bytes]], limit: int) -> ChunkPart:
    key = _header(spec, NO_SHARD, 0)
    if len(key) + sum(len(piece) for _, piece in found) + _RECORD_OVERHEAD > limit:
        raise row_too_large(spec.table, limit)
    headers = tuple((str(shard), piece) for shard, piece in found)
    return ChunkPart(tuple(shard for shard, _ in found), key, None, headers)


def _keys_by_shard(keys: pa.Array, spec: ChunkSpec) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield each shard that has keys, with their row numbers and the keys."""
    if spec.shards == 1:
        yield 0, pa.array(np.arange(len(keys), dtype=np.int32)), keys
        return
    shard = shards_of(spec.table, keys.to_pylist(), spec.shards)
    order = np.argsort(shard, kind="stable").astype(np.int32)
    edges = np.searchsorted(shard[order], np.arange(spec.shards + 1)).tolist()
    for number, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            at = pa.array(order[begin:end])
            yield number, at, keys.take(at)


def parts_of(record: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a record of the chunks topic, and their shards; none if it names no shard.

    A record has one part, for the shard that its key names, or parts of several as its headers.
    """
    key, value = record["key"], record["value"]
    if value is None:
        for header in record["headers"] or ():
            if header["key"].isdecimal() and header["value"] is not None:
                yield int(header["key"]), header["value"]
    elif key is not None:
        try:
            shard = msgspec.json.decode(key)["shard"]
        except (msgspec.DecodeError, KeyError, TypeError):
            return
        if isinstance(shard, int):
            yield shard, len(key).to_bytes(4) + key + value


def shards_of(table: str, keys: Sequence[bytes], shards: int) -> npt.NDArray[np.uint32]:
    """Return the shard of each key of a table, by the rule of `changed_keys.shard_of`."""
    seed = crc32(table.encode() + b"\0")
    return np.array([crc32(key, seed) for key in keys], np.uint32) % np.uint32(shards)


def _by_shard(rows: KeyedRows, spec: ChunkSpec) -> Iterator[tuple[int, pa.Array, pa.StructArray]]:
    """Yield each shard that has rows, with their keys and the rows."""
    keys, images = _whole(rows.keys), _struct(rows.rows)
    if spec.shards == 1:
        if len(keys):
            yield 0, keys, images
        return
    shard = shards_of(spec.table, keys.to_pylist(), spec.shards)
    order = np.argsort(shard, kind="stable")
    edges = np.searchsorted(shard[order], np.arange(spec.shards + 1)).tolist()
    for number, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            at = pa.array(order[begin:end])
            yield number, keys.take(at), images.take(at)


def _values(packet: pa.Table, limit: int, ratio: float = 0.0) -> Iterator[bytes]:
    """Yield the chunk batch in pieces of at most `limit` bytes, cut between rows.

    A row that is larger alone makes a piece of its own. `ratio` is the size of encoded bytes to
    bytes in memory, as expected; 0 = not known.
    """
    size = packet.nbytes * ratio
    if size <= limit or packet.num_rows <= 1:
        value = change_batch.encode(packet)
        if len(value) <= limit or packet.num_rows <= 1:
            yield value
            return
        size = len(value)
    # A tenth more pieces than the mean needs: most are then right at once.
    count = min(packet.num_rows, math.ceil(size * 1.1 / limit))
    edges = [packet.num_rows * at // count for at in range(count + 1)]
    for begin, end in pairwise(edges):
        yield from _values(packet.slice(begin, end - begin), limit)


def _part(spec: ChunkSpec, shard: int, part: int, value: bytes, limit: int) -> ChunkPart:
    key = _header(spec, shard, part)
    if len(key) + len(value) + _RECORD_OVERHEAD > limit:
        raise row_too_large(spec.table, limit)
    return ChunkPart((shard,), key, value)


def _header(spec: ChunkSpec, shard: int, part: int) -> bytes:
    return msgspec.json.encode(
        Header(
            spec.run, spec.table, spec.chunk, spec.attempt, shard, part, connector=spec.connector
        )
    )


def row_too_large(table: str, limit: int) -> TableError:
    """Return the error for a row that no record can hold."""
    return TableError(
        f"a row of {table} is larger than a record may be ({limit} bytes)",
        code=ROW_TOO_LARGE,
        hint="raise dead_letters.max_record_bytes, and max.message.bytes of the chunks topic",
    )


def _struct(table: pa.Table) -> pa.StructArray:
    arrays = [_whole(column) for column in table.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(table.schema))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
