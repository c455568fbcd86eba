"""One stretch of one Kafka partition, from raw records to packets of net changes.

Pure: no Spark, no Kafka. The steps, in order: decode headers → drop replays (`replay_filter`) →
canonical keys → newest state per key → typed images of the winners only → packets. Whatever cannot
be decoded becomes a dead letter with its original bytes; nothing here raises on any input.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from lakemark.converters.converter import OUT_OF_RANGE, WRONG_TYPE
from lakemark.converters.hidden_nulls import note_defaults
from lakemark.converters.record_schema import compare, schema_for
from lakemark.converters.registry import converter_of
from lakemark.model import change_batch, fills
from lakemark.model.decoding import (
    ANOTHER_FORM,
    CONVERTER_CHECK,
    LOG_CHANGED,
    AppliedPosition,
    DeadLetter,
    DecodedRange,
    Records,
    StretchPlan,
    TableReport,
    is_new,
)
from lakemark.model.definitions import in_force
from lakemark.model.events import Headers, Kind
from lakemark.model.fills import Fill
from lakemark.model.positions import event_of, identity_of, one_transaction
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import plain_of
from lakemark.source.fold import Folded, Raw, fold
from lakemark.source.replay_filter import Gated, Logged, beginnings, drop_replays

Schemas = Sequence[bytes | None] | Mapping[int, bytes | int | None]
"""By a record's index, what tells by which schema it was written."""

_BESIDE: Final = frozenset({int(Kind.TRUNCATE), int(Kind.INCREMENTAL)})  # may stand anywhere

OLD_TRUNCATE: Final = (
    "a truncate came late, or was sent again, maybe by another server: which rows are older is not "
    "certain"
)
TYPE_REASONS: Final = frozenset({WRONG_TYPE, OUT_OF_RANGE})


def headers(records: Records, plan: StretchPlan) -> Headers:
    """The headers of a stretch. Never raises."""
    return converter_of(plan.converter).headers(records, plan)


def decode_range(records: Records, plan: StretchPlan, heads: Headers | None = None) -> DecodedRange:
    """Turns one stretch into packets, dead letters and reports. Deterministic; never raises.

    Args:
        records: the stretch.
        plan: how to decode.
        heads: its headers, where they are known already.
    """
    heads = heads or headers(records, plan)
    start = plan.applied.get((records.topic, records.partition), AppliedPosition())
    logged = logged_by(heads, plan)
    gated = drop_replays(heads.kind, heads.position, heads.source_ts, start, logged)
    reached = replace(gated.after, creates=_creates(heads, gated.keep, start, gated.after))
    first, last = (records.offsets[0], records.offsets[-1]) if records.offsets else (-1, -1)
    out = DecodedRange(records.topic, records.partition, first, last, [], [], {}, reached, {})
    out.kinds = dict(Counter(heads.kind))
    out.beginnings = beginnings(heads.kind, heads.position, heads.source_ts, gated.keep)
    out.statements = tuple(heads.statements.values())
    by_table: dict[str, list[int]] = {}
    if len(set(map(heads.table.__getitem__, gated.keep))) == 1:  # a topic is mostly one table's
        by_table[heads.table[gated.keep[0]]] = gated.keep
    else:
        for index in gated.keep:
            by_table.setdefault(heads.table[index], []).append(index)
    work = _Work(records, heads, plan, out, start)
    if Kind.BAD in out.kinds:
        work.reject_unread([index for index, kind in enumerate(heads.kind) if kind == Kind.BAD])
    for table, indices in by_table.items():
        if work.wants(table):
            work.table(table, indices)
        elif table in plan.left or work.moved(table):
            work.report(table)
    if gated.regressed is not None:
        out.regressed = records.offsets[gated.regressed]
        work.regressed(gated.regressed, proven=gated.proven)
    work.doubtful(gated.doubtful)
    work.old_truncates(logged)
    if records.topic in plan.stopped_topics:
        out.dead = []  # they are written when the table is read again
    doubt_converter(out, plan)
    doubt_schemas(out, plan)
    work.note_repeats(gated)
    break_circuit(out, len(records.offsets), plan)
    stopped = out.stopped()
    out.packets = [(t, p) for t, p in out.packets if t not in stopped]
    dead = {letter.offset for letter in out.dead}
    for table, indices in by_table.items():
        if table not in stopped and work.wants(table):
            good = [i for i in indices if records.offsets[i] not in dead] if dead else indices
            out.applied[table] = good
    return out


def logged_by(heads: Headers, plan: StretchPlan) -> Logged | None:
    """Return what names the events of a stretch; None where the connector names none."""
    connector, names, position = plan.identity.connector, heads.transaction, heads.position
    if not identity_of(connector):
        return None
    return lambda index: event_of(connector, names[index], position[index])


def _twice(heads: Headers, keep: Sequence[int], start: AppliedPosition) -> bool:
    """Say whether an event has the position of the one before it, see `TableReport`.

    The halves of a key change are two that have one.
    """
    before, left = start.position, False
    for index in keep:
        at, op = heads.position[index], heads.op[index]
        if at == before and not (left and op == "c"):
            return True
        before, left = at, op == "d"
    return False


def _creates(
    heads: Headers, keep: Sequence[int], start: AppliedPosition, end: AppliedPosition
) -> bool:
    """Say whether the transaction at the stretch's end has created rows, here or before.

    What does not move the applied position may stand between two events of the transaction:
    truncates that a restarted connector sends again, rows of its incremental snapshots.
    """
    if start.creates and one_transaction(start.position, end.position):
        return True
    if "c" not in map(heads.op.__getitem__, keep):
        return False
    for index in reversed(keep):
        if heads.kind[index] in _BESIDE:
            continue
        if not one_transaction(heads.position[index], end.position):
            return False
        if heads.op[index] == "c":
            return True
    return False


class _Work:
    """The state of one call of `decode_range`."""

    def __init__(
        self,
        records: Records,
        heads: Headers,
        plan: StretchPlan,
        out: DecodedRange,
        since: AppliedPosition,
    ) -> None:
        self.records = records
        self.heads = heads
        self.keys = heads.readable(records.keys)
        self.converter = converter_of(plan.converter)
        self.began = since
        self.raw = Raw(self.converter, heads, self.keys, records.headers, since, out.keys)
        self.plan = plan
        self.out = out

    def report(self, table: str) -> TableReport:
        return self.out.tables.setdefault(table, TableReport())

    def reject(self, index: int, reason: str, detail: str, *, table: str = "") -> None:
        records = self.records
        table = table or self.heads.table[index]
        self.out.dead.append(
            DeadLetter(
                records.topic,
                records.partition,
                records.offsets[index],
                reason,
                detail,
                records.keys[index],
                records.values[index],
                table,
                tuple(
                    (header["key"], header["value"])
                    for header in records.headers[index] or ()
                    if header["key"] in self.converter.read_headers
                ),
            )
        )
        if table:
            self.report(table).bad += 1

    def reject_unread(self, indices: list[int]) -> None:
        """Reject records whose headers are bad; a key may still say whose row misses an event.

        Where it does not, any row of the tables that the topic carries may.
        """
        heads, carried = self.heads, self._carried()
        by_table: dict[str, list[int]] = {}
        for index in indices:
            named = heads.table[index]
            tables = [named] if named else carried
            reason, detail = heads.reason[index] or "not-debezium", heads.detail[index] or ""
            self.reject(index, reason, detail, table=tables[0] if len(tables) == 1 else "")
            if self.records.values[index] is not None:
                for table in filter(self.wants, tables):
                    by_table.setdefault(table, []).append(index)
        for table, found in by_table.items():
            if table != self.plan.identity.signal_table:
                read, report = self._missing(table, found), self.report(table)
                self._missed(table, report, read)
                if table in carried:
                    report.unread += len(found) - len(read)

    def _carried(self) -> list[str]:
        """The tables wanted that came in the topic, else those whose name it has."""
        plan, topic = self.plan, self.records.topic
        qualifier, name = plan.identity.qualifier, plan.identity.logical_name
        own = topic.removeprefix(f"{name}.")
        named = f"{qualifier}.{own}" if qualifier else own
        known = {*plan.schemas, *plan.known_keys}
        found = plan.carried.get(topic) or sorted(t for t in known if plain_of(t) == named)
        return [
            table
            for table in found
            if table != plan.identity.signal_table
            and (plan.selected is None or table in plan.selected)
        ]

    def _missing(self, table: str, indices: list[int]) -> list[tuple[bytes, bytes]]:
        """The key and position of each record whose key can be read, in their order."""
        alike: dict[tuple[bytes | int | None, tuple[str, ...]], list[int]] = {}
        written_by = self._written_by(table, indices)
        for index in indices:
            if raw := self.keys[index]:  # who wrote a bad record may have any keys
                alike.setdefault((written_by[index], self.converter.key_names(raw)), []).append(
                    index
                )
        found: list[tuple[int, bytes]] = []
        for run in alike.values():
            schema = self._schema(table, run)
            if isinstance(schema, TableSchema):
                read = self.converter.canonical_keys([self.keys[index] for index in run], schema)
                found += [(at, key) for at, key in zip(run, read, strict=True) if key is not None]
        return [(key, self.heads.position[index]) for index, key in sorted(found)]

    def chosen(self, table: str) -> bool:
        """Say whether the table is chosen."""
        return self.plan.selected is None or table in self.plan.selected

    def wants(self, table: str) -> bool:
        """Say whether the table streams."""
        return table not in self.plan.stopped and self.chosen(table)

    def moved(self, table: str) -> bool:
        """Say whether the table is stopped and comes in a topic that is new to it."""
        known = self.plan.carried.get(self.records.topic, ())
        return table in self.plan.stopped and table not in known and self.chosen(table)

    def regressed(self, index: int, *, proven: bool) -> None:
        """Stop the table of an event that stands below its place, or those that come after it.

        Args:
            index: the event's.
            proven: whether it is of another server's log for certain.
        """
        records, heads = self.records, self.heads
        first = heads.table[index]
        after = {
            table
            for table, kind in zip(heads.table[index:], heads.kind[index:], strict=True)
            if kind == Kind.CHANGE and self.chosen(table)
        }
        event = f"the event at {records.topic}-{records.partition} offset {records.offsets[index]}"
        for table in {first} if self.chosen(first) else sorted(after):
            if proven:
                self.report(table).stop = (
                    LOG_CHANGED,
                    (
                        f"{event} is of another server's log, as its transaction proves: an epoch "
                        "begins there with one of the next batches"
                    ),
                )
            else:
                self.report(table).stop = (
                    "position-regressed",
                    (
                        f"{event} stands below the position already applied although its source "
                        "time is newer: the source was restored or failed over"
                    ),
                )

    def doubtful(self, indices: Sequence[int]) -> None:
        """Have rows read again whose events were dropped and may be new."""
        by_table: dict[str, list[int]] = {}
        for index in indices:
            if self.wants(self.heads.table[index]):
                by_table.setdefault(self.heads.table[index], []).append(index)
        for table, found in by_table.items():
            report = self.report(table)
            changes = [index for index in found if self.heads.kind[index] == Kind.CHANGE]
            self._missed(table, report, self._missing(table, changes))
            if len(changes) < len(found):
                report.doubt = OLD_TRUNCATE

    def old_truncates(self, logged: Logged | None) -> None:
        """Have tables read again with a truncate that is not newer than all that was seen.

        Nothing else tells one of another server's log from others, as it may come to any partition:
        its position says nothing then about rows of the old log.
        """
        heads, topic = self.heads, self.records.topic
        if logged is None or Kind.TRUNCATE not in heads.kind:
            return
        applied = self.plan.applied.items()
        everywhere = [reached for place, reached in applied if place[0] == topic]
        for index, kind in enumerate(heads.kind):
            event = logged(index) if kind == Kind.TRUNCATE else None
            if event is None or not self.wants(heads.table[index]):
                continue
            at = heads.position[index]
            if any(at < one.position or not is_new(event, one.seen) for one in everywhere):
                self.report(heads.table[index]).doubt = OLD_TRUNCATE

    def note_repeats(self, gated: Gated) -> None:
        """Note what the gate held back, and whether anything may be there twice."""
        if gated.replays:
            self._count_replays(gated.keep)
        if _twice(self.heads, gated.keep, self.began):
            for report in self.out.tables.values():
                report.twice = True

    def _count_replays(self, keep: Sequence[int]) -> None:
        """Counts what the gate held back."""
        kept = set(keep)
        gate_kinds = {int(Kind.CHANGE), int(Kind.TRUNCATE), int(Kind.INCREMENTAL)}
        for index, kind in enumerate(self.heads.kind):
            table = self.heads.table[index]
            if kind in gate_kinds and index not in kept and self.chosen(table):
                self.report(table).replays += 1

    def table(self, table: str, indices: list[int]) -> None:
        """Packets of one table: one or two per run of records with the same schema."""
        report = self.report(table)
        report.events += len(indices)
        heads = self.heads
        report.newest_ts = max(map(heads.source_ts.__getitem__, indices))
        ops = [*map(heads.op.__getitem__, indices)]
        report.deletes, report.updates = ops.count("d"), ops.count("u")
        report.reads += ops.count("r")
        rowful = indices
        if Kind.TRUNCATE in self.out.kinds:
            truncates = [heads.position[i] for i in indices if heads.kind[i] == Kind.TRUNCATE]
            if truncates:
                self.out.packets.append((table, change_batch.truncates(truncates, table=table)))
            rowful = [i for i in indices if heads.kind[i] != Kind.TRUNCATE]
        for run in _schema_runs(rowful, self._written_by(table, rowful)):
            schema, raw = self._schema(table, run), heads.schema[run[0]]
            if self.records.values[run[0]] is None:
                raw = None  # it is the key's
            if isinstance(schema, TableSchema) and raw is not None:
                compare(report, self.converter, raw, schema, self.plan.schemas.get(table))
            young = self.plan.fills.get(table) if heads.schema[run[0]] is None else None
            if isinstance(schema, TableSchema) and young:
                columns = {i: self._columns(i) for i in run}
                for alike, older, odd in fills.shapes(columns, schema, young):
                    self._add(table, report, fold(alike, self.raw, older, self.plan.modes))
                    self._doubt(table, report, alike, odd)
            elif isinstance(schema, TableSchema):
                folded = fold(run, self.raw, schema, self.plan.modes)
                self._add(table, report, folded)
                if raw is not None:
                    for packet in folded.packets:
                        note_defaults(
                            report,
                            packet,
                            converter=self.converter,
                            raw_schema=raw,
                            schema=schema,
                            modes=self.plan.modes,
                        )
            else:
                report.stop = schema
                return

    def _columns(self, index: int) -> frozenset[str]:
        """The columns of an event's image."""
        return self.converter.columns_of(self.heads.after[index] or self.heads.before[index])

    def _doubt(self, table: str, report: TableReport, run: list[int], odd: Sequence[Fill]) -> None:
        """Have rows read again where it is not known what older images lack."""
        upto = max((bytes.fromhex(one.upto) for one in odd), default=b"")
        older = [index for index in run if self.heads.position[index] < upto]
        report.reread += [key.decode("utf-8", "replace") for key, _ in self._missing(table, older)]

    def _written_by(self, table: str, indices: Sequence[int]) -> Schemas:
        """By index, the schema that a record brings, else the number of the table's definition."""
        known, schemas = self.plan.definitions.get(table), self.heads.schema
        if known is None:
            return self._of_rows(indices, schemas)
        at = self.heads.position
        return {i: in_force(known, at[i]) if schemas[i] is None else schemas[i] for i in indices}

    def _of_rows(self, indices: Sequence[int], schemas: Sequence[bytes | None]) -> Schemas:
        """Have deletes without an image read by the schema of a row beside them.

        Theirs has the key alone, and would cut a stretch into as many runs as there are deletes.
        """
        if len(set(map(schemas.__getitem__, indices))) <= 1:
            return schemas
        heads, found = self.heads, dict[int, bytes | None]()
        bare = {i for i in indices if heads.op[i] == "d" and heads.before[i] is None}
        last = next((schemas[i] for i in indices if i not in bare), None)
        for index in indices:
            last = schemas[index] if index not in bare else last
            found[index] = schemas[index] if last is None else last
        return found

    def _schema(self, table: str, run: list[int]) -> TableSchema | tuple[str, str]:
        """The schema of a run, or the code and reason to stop its table."""
        raw, known, schemas = self.heads.schema[run[0]], self.plan.definitions, self.plan.schemas
        if raw is None and table in known:
            number = in_force(known[table], self.heads.position[run[0]])
            schemas = {table: known[table][number].schema}
        return schema_for(
            self.converter,
            table,
            raw_schema=raw,
            raw_key=next((key for i in run if (key := self.keys[i])), None),
            schemas=schemas,
            keyed=bool(self.plan.known_keys.get(table)),
            modes=self.plan.modes,
            numerics=self.plan.numerics,
        )

    def _missed(
        self, table: str, report: TableReport, missed: Sequence[tuple[bytes, bytes]]
    ) -> None:
        if missed:
            self.out.packets.append((table, change_batch.missed(missed, table=table)))
            report.reread += [key.decode("utf-8", "replace") for key, _ in missed]

    def _add(self, table: str, report: TableReport, folded: Folded) -> None:
        report.stop = report.stop or folded.stop
        self.out.packets += [(table, packet) for packet in folded.packets]
        for index, reason, detail in folded.rejected:
            self.reject(index, reason, detail, table=table)
        self._missed(table, report, folded.missed)
        report.unread += folded.unread
        report.own_snapshots |= folded.own_snapshots
        report.own_ends |= folded.own_ends
        report.incremental_reads += folded.incremental_reads
        report.clamped += folded.clamped
        report.unknown_columns |= folded.unknown - self.plan.ignorable.get(table, frozenset())


def _schema_runs(indices: list[int], schemas: Schemas) -> list[list[int]]:
    """Neighbouring records with the same schema; a delete's is the same one."""
    if indices and len(set(map(schemas.__getitem__, indices))) == 1:
        return [indices]
    runs: list[list[int]] = []
    last: object = None
    for index in indices:
        if not runs or schemas[index] != last:
            runs.append([])
            last = schemas[index]
        runs[-1].append(index)
    return runs


# -- what is bad about a stretch and is no matter of dead letters: the table stops instead ---------


def doubt_converter(out: DecodedRange, plan: StretchPlan) -> None:
    """Records of another form may only mean that the connector has another converter now."""
    if plan.converter_asked:
        return
    found = {one.table for one in out.dead if one.reason == ANOTHER_FORM and one.table}
    doubtful = found - plan.stopped  # what keeps those from streaming stays
    for table in doubtful:
        report = out.tables[table]
        why = "records have not the form of the converter that the connector had when it was asked"
        report.stop = report.stop or (CONVERTER_CHECK, why)
        _say_later(report)
    out.dead = [letter for letter in out.dead if letter.table not in doubtful]


def doubt_schemas(out: DecodedRange, plan: StretchPlan) -> None:
    """Values of another type may only mean that the catalog was read before the column changed."""
    doubtful = {
        letter.table
        for letter in out.dead
        if letter.reason in TYPE_REASONS
        and letter.table in plan.schemas
        and letter.table not in plan.verified
    }
    for table in doubtful:
        report = out.tables[table]
        report.stop = report.stop or ("schema-check", "values do not fit the catalog as last read")
        _say_later(report)
    out.dead = [letter for letter in out.dead if letter.table not in doubtful]


def break_circuit(out: DecodedRange, records: int, plan: StretchPlan) -> None:
    """Stops the table rather than shovel a topic into the dead letters.

    Records of which no table is known go there: there is nothing that could be stopped. A table is
    also known by its topic: what came in it before, or where one of that name is known.
    """
    if out.tables and len(out.dead) > plan.max_bad and len(out.dead) > plan.max_bad_share * records:
        reasons = sorted({letter.reason for letter in out.dead})
        for report in out.tables.values():
            report.stop = report.stop or (
                "too-many-bad-records",
                (
                    f"{len(out.dead)} of {records} records of {out.topic}-{out.partition} cannot "
                    f"be decoded ({', '.join(reasons)}); none was written to the dead letters"
                ),
            )
            _say_later(report)
        out.dead = []


def _say_later(report: TableReport) -> None:
    """Clear those parts of a report that the table's next reading will report again."""
    report.reread, report.bad, report.unread = [], 0, 0
