"""From packets to a write set: one table, one batch, one row per key.

Pure: it reads the table through a function. In order:

1. the row images of all packets become one pool; the truncate floor drops what lies below it;
2. keys whose packets say everything go straight through, column by column;
3. stretches of one key from several packets are composed (`changes.then`);
4. key changes are resolved: every move's image as of just below its position, chains included;
   creates take their unavailable columns from it, now or, when the two halves arrive in different
   batches, later (`Pending`, kept durably beside the table);
5. the result is laid out as the write set of the engines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark import changes, keys, packets, positions
from lakemark.changes import Net
from lakemark.errors import TableError

CDC: Final = "_cdc"
CDC_FIELDS: Final = [
    pa.field("position", pa.binary()),
    pa.field("op", pa.string()),
    pa.field("source_ts", pa.timestamp("us", "UTC")),
    pa.field("unavailable", pa.list_(pa.string())),
    pa.field("barrier", pa.binary()),
]
DELETED: Final = pa.field("deleted", pa.bool_())

ReadRows = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What one batch does to one table.

    Attributes:
        write_set: rows for the engine, see `sink/delta.py`; one per key.
        truncate: position below which rows are removed first; None = no truncate in this batch.
        pending: moves and taken creates still without their other half, as a packet; None = none.
        unavailable: rows of the write set that still have unavailable columns.
        dropped: changes below the truncate floor.
    """

    write_set: pa.Table
    truncate: bytes | None
    pending: pa.Table | None
    unavailable: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Part:
    """A packet and where it came from: parts of one Kafka partition compose in `order`."""

    partition: int
    order: int
    packet: pa.Table


def cdc_type(*, deletes: str) -> pa.DataType:
    """Arrow type of the `_cdc` struct under hard or soft deletes."""
    return pa.struct([*CDC_FIELDS, DELETED] if deletes == "soft" else CDC_FIELDS)


def resolve(
    parts: Sequence[Part],
    *,
    floor: bytes | None,
    pending: pa.Table | None,
    read_rows: ReadRows,
    deletes: str,
) -> Resolution:
    """The write set of one table's packets.

    Args:
        parts: all packets of the table in this batch.
        floor: position of the newest truncate applied before.
        pending: what earlier batches left (`Resolution.pending`).
        read_rows: given a table of key columns, the lake's rows with these keys, `_cdc` included.
        deletes: `hard` or `soft`.

    Raises:
        TableError: `schema-incompatible`: the packets' own types do not go together.
    """
    ordered = sorted(parts, key=lambda part: (part.partition, part.order))
    work = _Resolver(ordered, floor, pending, read_rows, deletes)
    return work.run()


@dataclass(slots=True)
class _Move:
    """A move on its way: `image` is the old key's state just below `position`."""

    old_key: bytes
    new_key: bytes
    position: bytes
    image: Net | None
    otherwise: Net | None
    conditional: bool
    known: bool = False  # image is resolved against the table already


@dataclass(slots=True)
class _Resolver:
    parts: Sequence[Part]
    floor: bytes | None
    earlier: pa.Table | None
    read_rows: ReadRows
    deletes: str
    pool: "_Pool" = field(init=False)
    moves: dict[tuple[bytes, bytes], _Move] = field(default_factory=dict)
    taken: dict[tuple[bytes, bytes], changes.Taken] = field(default_factory=dict)
    taken_before: set[tuple[bytes, bytes]] = field(default_factory=set)
    dropped: int = 0

    def run(self) -> Resolution:
        tables = [part.packet for part in self.parts]
        if self.earlier is not None:
            tables.append(self.earlier)
        key_columns = next((k for table in tables if (k := packets.key_columns_of(table))), ())
        self.pool = _Pool(tables, key_columns)
        truncate = self._truncate(tables)
        if truncate is not None:
            self.floor = max(truncate, self.floor or positions.LOWEST)
        simple, nets = self._sort_out()
        if self.earlier is not None:
            self._load_pending(self.pool.offsets[-1])
        if self.moves or self.taken or nets:
            nets = self._resolve(nets)
        write_set, unavailable = self._write_set(simple, nets)
        return Resolution(write_set, truncate, self._left_over(), unavailable, self.dropped)

    def _truncate(self, tables: Sequence[pa.Table]) -> bytes | None:
        found = [
            position
            for table in tables
            for position in table.column("position")
            .filter(pc.equal(table.column("record"), packets.TRUNCATE))
            .to_pylist()
        ]
        return max(found, default=None)

    def _below(self, position: bytes) -> bool:
        return self.floor is not None and positions.below_truncate(position, self.floor)

    # -- packets -> simple rows and nets by key -------------------------------------------------

    def _sort_out(self) -> tuple[list[int], dict[bytes, Net]]:
        """Pool rows that go straight through, and the composed nets of all other keys."""
        seen: dict[bytes, int] = {}
        plain: list[tuple[bytes, int]] = []
        special: dict[bytes, list[tuple[int, int, Net]]] = {}
        for number, part in enumerate(self.parts):
            offset = self.pool.offsets[number]
            packet = part.packet
            simple = _simple_mask(packet)
            names = packet.column("key").to_pylist()
            at_position = packet.column("position").to_pylist()
            for at in np.flatnonzero(simple).tolist():
                if self.floor is not None and self._below(at_position[at]):
                    self.dropped += 1
                    continue
                plain.append((names[at], offset + at))
                seen[names[at]] = seen.get(names[at], 0) + 1
            rest = np.flatnonzero(~simple)
            if rest.size:
                self._special(packet.take(pa.array(rest)), rest, offset, part, special)
        repeated = {key for key, count in seen.items() if count > 1 or key in special}
        rows = [row for key, row in plain if key not in repeated]
        if repeated:
            self._repeated(repeated, special)
        return rows, {key: _compose(found) for key, found in special.items()}

    def _special(
        self,
        packet: pa.Table,
        rows: np.ndarray,  # type: ignore[type-arg]
        offset: int,
        part: Part,
        special: dict[bytes, list[tuple[int, int, Net]]],
    ) -> None:
        for at, record in enumerate(packets.nets_of(packet, offset=0)):
            net = replace(record.net, row=offset + int(rows[at])) if record.net else None
            position = record.position or (net.position if net else b"")
            if record.record == packets.TRUNCATE:
                continue
            if self._below(position):
                self.dropped += record.record == packets.NET
                continue
            if record.record == packets.NET and net is not None:
                special.setdefault(record.key, []).append((part.partition, part.order, net))
            else:
                self._key_change(record, net)

    def _repeated(
        self, repeated: set[bytes], special: dict[bytes, list[tuple[int, int, Net]]]
    ) -> None:
        for number, part in enumerate(self.parts):
            mask = _simple_mask(part.packet)
            names = part.packet.column("key").to_pylist()
            for at in np.flatnonzero(mask).tolist():
                if names[at] in repeated:
                    one = packets.nets_of(part.packet.slice(at, 1), offset=0)[0].net
                    if one is not None and not self._below(one.position):
                        net = replace(one, row=self.pool.offsets[number] + at)
                        special.setdefault(names[at], []).append(
                            (part.partition, part.order, net)
                        )

    def _key_change(self, record: packets.Record, net: Net | None) -> None:
        new_key = record.new_key or b""
        at = (new_key, record.position)
        if record.record == packets.TAKEN:
            row = net.row if net else -1
            self.taken[at] = changes.Taken(record.key, new_key, record.position, row)
        elif record.record == packets.MOVE:
            self.moves[at] = _Move(
                record.key, new_key, record.position, net, None, record.conditional
            )
        elif record.record == packets.MOVE_OTHERWISE and at in self.moves:
            self.moves[at].otherwise = net

    def _load_pending(self, offset: int) -> None:
        if self.earlier is None:
            return
        for record in packets.nets_of(self.earlier, offset=offset):
            if self._below(record.position):
                continue
            at = (record.new_key or b"", record.position)
            if record.record == packets.TAKEN:
                self.taken_before.add(at)
                if at in self.taken:
                    continue
            elif at in self.moves:
                continue
            self._key_change(record, record.net)
            if record.record == packets.MOVE:
                self.moves[at].known = True

    # -- key changes ----------------------------------------------------------------------------

    def _resolve(self, nets: dict[bytes, Net]) -> dict[bytes, Net]:
        """Final nets of the given keys and of keys whose columns can be filled now."""
        base = self._read_base(nets)
        gone = self._shifts_cut_apart(nets, base)
        for move in sorted(self.moves.values(), key=lambda m: m.position):
            self._image(move, base)
        final: dict[bytes, Net] = {}
        for key, net in nets.items():
            if key in gone:
                continue
            result = self._final(key, net, base)
            if result is not None:
                final[key] = result
        for at, taken in self.taken.items():
            if at in self.taken_before and taken.new_key not in final:
                filled = self._fill_late(taken, base)
                if filled is not None:
                    final[taken.new_key] = filled
        return final

    def _read_base(self, nets: dict[bytes, Net]) -> dict[bytes, Net]:
        """The lake's rows of every key that a key change or a condition touches, as nets."""
        wanted: dict[bytes, int] = {}
        for key, net in nets.items():
            if net.conditional or net.moved_in or (net.unavailable and not net.base):
                wanted[key] = net.row
        for move in self.moves.values():
            if not move.known and (move.image is None or move.image.base or move.conditional):
                source = nets.get(move.old_key) or move.image or move.otherwise
                if source is not None:
                    wanted[move.old_key] = source.row
        for taken in self.taken.values():
            wanted.setdefault(taken.new_key, taken.row)
        if not wanted:
            return {}
        rows = self.read_rows(self.pool.key_table(list(wanted.values())))
        return self.pool.add_lake_rows(rows, deletes=self.deletes) if rows.num_rows else {}

    def _shifts_cut_apart(self, nets: dict[bytes, Net], base: dict[bytes, Net]) -> set[bytes]:
        """Deletes of a deferred key shift whose create was in an earlier batch.

        The create found a row there and said so in the row's barrier; the delete of that earlier
        row, arriving now, must not take the created row with it.
        """
        gone = set()
        for move in self.moves.values():
            row = base.get(move.old_key)
            if (
                not move.known
                and move.image is None
                and row is not None
                and row.op == "c"
                and row.barrier is not None
                and not row.unavailable
                and positions.major_of(row.barrier) == positions.major_of(move.position)
            ):
                move.known = True  # the image went when the create overwrote it
                net = nets.get(move.old_key)
                if net is not None and net.position == move.position:
                    gone.add(move.old_key)
        return gone

    def _image(self, move: _Move, base: dict[bytes, Net]) -> None:
        image = move.image
        if not move.known:
            row = base.get(move.old_key)
            if row is not None and row.position >= move.position:
                row = None  # the table is ahead of the move: not its image
            if move.conditional and not _row_before(row, move.position):
                image = move.otherwise
            image = changes.then(row, image) if image is not None else row
            if image is not None and image.action == changes.DELETE:
                image = None
            move.known = True
        move.image = self._filled(image, move.old_key)
        move.conditional, move.otherwise = False, None

    def _filled(self, net: Net | None, key: bytes) -> Net | None:
        """`net` with the columns that the move it came by can give."""
        if net is None or not net.unavailable or net.barrier is None:
            return net
        source = self.moves.get((key, net.barrier))
        if source is None or source.image is None:
            return net
        image = source.image
        given = net.unavailable - image.unavailable
        cells = dict(net.cells)
        for column in given:
            cells[column] = image.cell(column)
        left = net.unavailable - given
        return replace(net, cells=cells, unavailable=left, missing=net.missing & left)

    def _final(self, key: bytes, net: Net, base: dict[bytes, Net]) -> Net | None:
        row = base.get(key)
        if net.conditional:
            if not _row_before(row, net.position):
                net = changes.delete(
                    position=net.position, source_ts=net.source_ts, row=net.row
                )
            net = replace(net, conditional=False)
        if row is None:
            return self._filled(replace(net, displaced=None), key)
        if not net.force and net.position < row.position:
            return None
        whole = self._filled(changes.then(self._filled(row, key), net), key)
        if whole is None:
            return None
        displaced = row if net.moved_in and _row_before(row, net.position) else None
        return replace(whole, displaced=displaced)

    def _fill_late(self, taken: changes.Taken, base: dict[bytes, Net]) -> Net | None:
        row = base.get(taken.new_key)
        if row is None or row.action == changes.DELETE:
            return None
        filled = self._filled(row, taken.new_key)
        return filled if filled is not None and filled.unavailable != row.unavailable else None

    def _left_over(self) -> pa.Table | None:
        """Halves of key changes whose other half, or whose own columns, are still to come."""
        items: list[packets.Record] = []
        for at, move in self.moves.items():
            whole = move.image is None or not move.image.unavailable
            if at in self.taken and whole:
                continue
            items.append(
                packets.Record(packets.MOVE, move.old_key, move.image, move.new_key, move.position)
            )
        for at, taken in self.taken.items():
            found = self.moves.get(at)
            if found is not None and (found.image is None or not found.image.unavailable):
                continue
            create = Net(changes.UPSERT, "c", taken.position, row=taken.row)
            items.append(
                packets.Record(
                    packets.TAKEN, taken.old_key, create, taken.new_key, taken.position
                )
            )
        if not items:
            return None
        return packets.build(
            items, self.pool.rows(), table="", key_columns=self.pool.key_columns
        )

    # -- layout ---------------------------------------------------------------------------------

    def _write_set(self, simple: list[int], nets: dict[bytes, Net]) -> tuple[pa.Table, int]:
        chosen = list(nets.values())
        plain = self.pool.simple_rows(simple, deletes=self.deletes)
        if not chosen:
            return plain, 0
        special = self.pool.net_rows(chosen, deletes=self.deletes)
        unknown = sum(1 for net in chosen if net.unavailable and not net.base)
        return pa.concat_tables([plain, special]), unknown


def _row_before(row: Net | None, position: bytes) -> bool:
    """Whether the table had a row of this key before the transaction at `position`."""
    return (
        row is not None
        and row.action != changes.DELETE
        and positions.major_of(row.position) != positions.major_of(position)
    )


def _simple_mask(packet: pa.Table) -> np.ndarray:  # type: ignore[type-arg]
    """Records that are whole upserts or deletes and take part in nothing."""
    plain = pc.and_(
        pc.equal(packet.column("record"), packets.NET),
        pc.not_equal(pc.fill_null(packet.column("action"), changes.INSERT), changes.INSERT),
    )
    for name in ("base", "moved_in", "conditional"):
        plain = pc.and_(plain, pc.invert(packet.column(name)))
    plain = pc.and_(plain, pc.is_null(packet.column("unavailable")))
    return np.asarray(plain.to_numpy(zero_copy_only=False), dtype=bool)


def _compose(found: list[tuple[int, int, Net]]) -> Net:
    """Stretches of one key: in order inside a partition, by position across partitions."""
    by_partition: dict[int, Net] = {}
    for partition, _, net in sorted(found, key=lambda item: item[:2]):
        by_partition[partition] = changes.then(by_partition.get(partition), net)
    whole: Net | None = None
    for net in sorted(by_partition.values(), key=lambda one: one.position):
        whole = changes.then(whole, net)
    if whole is None:
        raise AssertionError
    return whole


class _Pool:
    """All row images of a batch: packets first, then rows read from the lake."""

    def __init__(self, tables: Sequence[pa.Table], key_columns: Sequence[str]) -> None:
        self.key_columns = tuple(key_columns)
        self.offsets: list[int] = []
        self._chunks: list[pa.Table] = []
        self._control: list[pa.Table] = []
        self._rows: pa.StructArray | None = None
        count = 0
        for table in tables:
            self.offsets.append(count)
            count += table.num_rows
            self._chunks.append(_columns_of(table.column("row")))
            self._control.append(table.select(["op", "action", "position", "source_ts", "force"]))
        self._count = count

    def rows(self) -> pa.StructArray:
        """The pool as one struct array.

        Raises:
            TableError: the types of a column do not go together.
        """
        if self._rows is None:
            try:
                table = pa.concat_tables(self._chunks, promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise TableError(
                    f"records of one batch disagree about a column's type: {error}",
                    code="schema-incompatible",
                    hint="see the table's schema history; lakemark table resume once it is settled",
                ) from error
            self._rows = _struct_of(table)
        return self._rows

    def key_table(self, rows: Sequence[int]) -> pa.Table:
        """The key columns of the given pool rows."""
        pool = self.rows()
        index = pa.array(rows, pa.int64())
        return pa.table({n: pool.field(n).take(index) for n in self.key_columns})

    def add_lake_rows(self, rows: pa.Table, *, deletes: str) -> dict[bytes, Net]:
        """Puts rows of the lake into the pool; their nets by canonical key."""
        start = self._count
        self._chunks.append(rows.drop_columns([CDC]))
        self._count += rows.num_rows
        self._rows = None
        columns = [rows.column(name).combine_chunks() for name in self.key_columns]
        names = keys.canonical_from_columns(columns, [c.type for c in columns]).to_pylist()
        nets: dict[bytes, Net] = {}
        for at, (key, cdc) in enumerate(zip(names, rows.column(CDC).to_pylist(), strict=True)):
            unavailable = frozenset(cdc["unavailable"] or ())
            dead = deletes == "soft" and bool(cdc.get("deleted"))
            ts = cdc["source_ts"]
            nets[key] = Net(
                changes.DELETE if dead else changes.UPSERT,
                cdc["op"],
                cdc["position"],
                source_ts=_microseconds(ts),
                row=start + at,
                unavailable=unavailable,
                missing=unavailable,
                barrier=cdc["barrier"],
            )
        return nets

    def simple_rows(self, rows: list[int], *, deletes: str) -> pa.Table:
        """Write-set rows of pool rows that go straight through."""
        index = pa.array(rows, pa.int64())
        control = pa.concat_tables(self._control).take(index)
        return self._lay_out(
            self.rows().take(index) if len(rows) != self._count else self.rows(),
            op=control.column("op").combine_chunks(),
            action=control.column("action").combine_chunks(),
            position=control.column("position").combine_chunks(),
            source_ts=control.column("source_ts").combine_chunks(),
            force=control.column("force").combine_chunks(),
            unavailable=pa.nulls(len(rows), pa.list_(pa.string())),
            patch=pa.nulls(len(rows), pa.list_(pa.string())),
            barrier=pa.nulls(len(rows), pa.binary()),
            deletes=deletes,
        )

    def net_rows(self, nets: Sequence[Net], *, deletes: str) -> pa.Table:
        """Write-set rows of nets."""
        names = pa.list_(pa.string())
        missing = [n.missing if n.base else n.unavailable for n in nets]
        return self._lay_out(
            packets.take(self.rows(), nets),
            op=pa.array([n.op for n in nets], pa.string()),
            action=pa.array([n.action for n in nets], pa.string()),
            position=pa.array([n.position for n in nets], pa.binary()),
            source_ts=pa.array([n.source_ts for n in nets], pa.int64()),
            force=pa.array([n.force for n in nets], pa.bool_()),
            unavailable=pa.array([sorted(m) if m else None for m in missing], names),
            patch=pa.array([sorted(n.unavailable) if n.base else None for n in nets], names),
            barrier=pa.array([_barrier(n) for n in nets], pa.binary()),
            deletes=deletes,
        )

    def _lay_out(self, rows: pa.StructArray, *, deletes: str, **control: Any) -> pa.Table:
        count = len(rows)
        fields = [*CDC_FIELDS]
        cdc = [
            control["position"],
            control["op"],
            control["source_ts"].cast(pa.timestamp("us", "UTC")),
            control["unavailable"],
            control["barrier"],
        ]
        if deletes == "soft":
            fields.append(DELETED)
            cdc.append(pc.equal(control["action"], changes.DELETE))
        columns = {f.name: rows.field(at) for at, f in enumerate(rows.type)}
        columns[CDC] = pa.StructArray.from_arrays(cdc, fields=fields)
        columns["__action"] = control["action"]
        columns["__patch"] = control["patch"]
        columns["__force"] = control["force"]
        columns["__barrier"] = pa.nulls(count, pa.binary())
        return pa.table(columns)


def _barrier(net: Net) -> bytes | None:
    """Kept in the row while columns are unavailable, or where a create displaced another row."""
    if net.action == changes.DELETE:
        return None
    return net.barrier if net.unavailable or net.displaced is not None else None


def _microseconds(ts: Any) -> int:
    return 0 if ts is None else int(ts.timestamp() * 1_000_000)


def _columns_of(rows: pa.ChunkedArray) -> pa.Table:
    """A struct column as a table; a struct without children as a table of as many rows."""
    whole = rows.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], rows.type)
    if not len(rows.type):
        return pa.table({"__none": pa.nulls(len(rows), pa.null())})
    return pa.Table.from_arrays(
        [whole.field(at) for at in range(len(whole.type))], names=[f.name for f in whole.type]
    )


def _struct_of(table: pa.Table) -> pa.StructArray:
    if "__none" in table.column_names:
        table = table.drop_columns(["__none"])
    arrays = []
    for name in table.column_names:
        column = table.column(name)
        arrays.append(
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        )
    return pa.StructArray.from_arrays(arrays, names=table.column_names)
