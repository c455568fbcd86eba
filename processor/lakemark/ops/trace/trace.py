"""`lakemark trace`: the story of one row. It asks everybody and changes nothing.

In order:

1. the connector says which topic the table has, the database what the key is and what its row is;
2. the checkpoint and the table's log say which batch read what, and which commit it made;
3. the change topic is read: the records of the key, and of the keys that its row had before;
4. lakemark's own topics tell of chunks that had the key, and of dead letters;
5. the fate of each follows by the rules that the table is written by (`fates`);
6. the lake's row is read, and compared with the database's.

What is not kept any more is said not to be known. A row that changes meanwhile is looked at again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import ChunkRows
from lakemark.connectors.parts import PipelinePart, parts_of
from lakemark.errors import DependencyError, LakemarkError, PipelineError, StateVersionError
from lakemark.kafka.records import read_all, read_compacted
from lakemark.model.decoding import StretchPlan
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.ops import dead_letters
from lakemark.ops.dead_letters import LetterFilter
from lakemark.ops.stored_state import kept_states
from lakemark.ops.trace import facts_rows
from lakemark.ops.trace.batches import TableBatches
from lakemark.ops.trace.facts_chunks import chunks_of
from lakemark.ops.trace.facts_log import (
    LogFound,
    ReadSpan,
    Since,
    StretchReader,
    Tick,
    alone,
)
from lakemark.ops.trace.facts_rows import Agreement, KeyOfRow, RowInLake
from lakemark.ops.trace.fates import Fates, newest_first
from lakemark.ops.trace.traced import (
    Fate,
    Image,
    RowAtStart,
    Told,
    Traced,
    TracedRecord,
    TracedSweep,
)
from lakemark.settings.config import Config
from lakemark.settings.table_id import unqualified
from lakemark.sink import formats
from lakemark.sink.names import folder_of
from lakemark.sink.table_format import TableReader
from lakemark.snapshot.fields import PrimaryKey
from lakemark.snapshot.signal_validation import key_texts
from lakemark.state.progress import tables_of
from lakemark.state.tables import PipelineState, TableState

_LOOKS: Final = 3  # at a row that changes while it is looked at


@dataclass(frozen=True, slots=True)
class RowStory:
    """The story of a row.

    Attributes:
        table: its name.
        key: canonical.
        keys: those that are followed, this one among them.
        told: newest first.
        spans: what was read of the change topics.
        read: how many records were looked at.
        lake: the lake's row.
        database: the row in the database; None = there is none, or it was not read.
        agreement: whether they agree.
        on_the_way: whether records of the key wait to be applied.
        texts: of the key, as the database takes them.
        at: the version of the table that the story ends with; None = the newest.
        later: how many things later versions have, which are left out.
        notes: what is not known, and why.
    """

    table: str
    key: bytes
    keys: frozenset[bytes]
    told: list[Told]
    spans: list[ReadSpan]
    read: int
    lake: RowInLake
    database: Image | None
    agreement: Agreement
    on_the_way: bool
    texts: tuple[str, ...] = ()
    at: int | None = None
    later: int = 0
    notes: list[str] = field(default_factory=list)


def trace(
    config: Config,
    table: str,
    key: PrimaryKey,
    *,
    since: Since,
    at: int | None = None,
    tick: Tick = lambda *_: None,
) -> RowStory:
    """Return the story of a row.

    Args:
        config: ours.
        table: its name.
        key: as somebody has written it.
        since: where reading begins.
        at: a version of the table, with which the story ends; None = the newest.
        tick: told of the progress.

    Raises:
        PipelineError: `unknown-table`, `unknown-version`, `key-unreadable`.
        RefusedError: the table has no key, or one of other columns.
        DependencyError: Kafka, Connect or the lake does not answer.
        InvalidConfig: somebody refuses us.
    """
    work = _Work.of(config, table)
    work.ask(key)
    return work.story(since=since, at=at, tick=tick)


@dataclass(slots=True)
class _Work:
    """The parts of one trace.

    Attributes:
        config: ours.
        part: the table's connector's.
        connector: as it is configured.
        modes: its handling modes.
        table: its name.
        schema: as catalog or file have it; None where only records tell.
        states: the newest ones.
        entry: the table's; None where nobody knows it.
        reader: of the table in the lake.
        row_key: the key.
        source: the database's row, or its absence; None where it was not read.
        notes: what is not known, and why.
    """

    config: Config
    part: PipelinePart
    connector: Connector
    modes: HandlingModes
    table: str
    schema: TableSchema | None
    states: list[PipelineState]
    entry: TableState | None
    reader: TableReader
    notes: list[str]
    texts: list[str] = field(default_factory=list)
    row_key: KeyOfRow = field(init=False)
    source: ChunkRows | None = None

    @classmethod
    def of(cls, config: Config, table: str) -> "_Work":
        """Step 1 and 2: the table, and what is known of its batches."""
        part, connector = _owner(config, table)
        modes = HandlingModes.from_connector(connector.settings)
        notes: list[str] = []
        try:
            schema = catalog_of(part.config, modes, connector).read([table]).get(table)
        except DependencyError as error:
            schema = None
            notes.append(f"the database was not asked: {error.message}")
        states: list[PipelineState] = []
        try:
            states = kept_states(config)
        except (DependencyError, StateVersionError) as error:
            notes.append(f"batches are not known but by the table's commits: {error.message}")
        entry = _entry(config, states, table)
        if schema is None and entry is None:
            raise PipelineError(
                f"neither the database nor the pipeline {config.name} knows a table {table}",
                code="unknown-table",
                hint="`lakemark status` lists the tables, as they are to be written",
            )
        reader = formats.format_of(config.lake).reader_of(
            folder_of(config.lake, table), config.lake.options()
        )
        return cls(
            config, part, connector, modes, table, schema, states, entry, reader, notes
        )  # fmt: skip

    # -- the key, and the database ----------------------------------------------------------------

    def ask(self, key: PrimaryKey) -> None:
        """Find out what the key is, and read its row from the database if there is one."""
        schema = self.schema
        names = schema.key if schema else tuple(self.entry.files.key if self.entry else ())
        (self.texts,) = key_texts([key], self.table, names)
        if self.part.config.database is not None:
            try:
                self._read_source()
            except LakemarkError as error:
                if error.code in {"key-unreadable", "key-inexact"}:
                    raise
                self.notes.append(f"the database's row was not read: {error.message}")
        else:
            self.notes.append("the database's row was not read: no database is configured")
        if self.source is not None:
            self.row_key = facts_rows.key_of(self.source)
            return
        known = schema.by_name if schema else {}
        self.row_key = facts_rows.typed_key(
            self.table, names, self.texts, known, self.reader.schema()
        )

    def _read_source(self) -> None:
        self.source = facts_rows.read_source(
            self.part.config, self.modes, self.connector, self.table, self.texts
        )

    # -- the story --------------------------------------------------------------------------------

    def story(self, *, since: Since, at: int | None, tick: Tick) -> RowStory:
        """Steps 3 to 6."""
        history = self.reader.history()
        if at is not None and all(commit.version != at for commit in history):
            raise PipelineError(
                f"the log of {self.table} has no version {at}",
                code="unknown-version",
                hint="its newest is "
                + (str(history[0].version) if history else "none: there is no table"),
            )
        batches = TableBatches(history, self.states, self.entry)
        reader = StretchReader(self.config, self._plan(), self._epochs(), tick)
        log = reader.key_records(
            reader.spans(self._topics(), since),
            table=self.table,
            key=self.row_key.canonical,
            batches=batches,
        )
        signal = self.connector.signal_table
        chunks, sweeps = chunks_of(
            reader,
            table=self.table,
            keys=log.keys,
            signal_topic=self.connector.topic_of(signal) if signal else "",
            since=since,
        )
        found: list[Traced] = [*log.records, *chunks, *sweeps]
        begin = self._begin(batches, log, found)
        fates = Fates(self.table, batches, self.config.lake.deletes_of(self.table) == "hard", begin)
        told = self._with_letters(fates.of(found))
        told, later = _until(told, at)
        lake, rows = self._lake(at, history[0].version if history else -1)
        agreed = self._agreement(rows, at)
        if agreed.kind not in {facts_rows.SAME, facts_rows.NEITHER, facts_rows.UNKNOWN}:
            lake, agreed = self._again(lake, agreed)
        told = [replace(one, is_now=_is_now(one, lake, self.row_key.canonical)) for one in told]
        self._remark(log, told, lake, at, begin)
        waits = any(one.fate is Fate.WAITING for one in told)
        return RowStory(
            self.table,
            self.row_key.canonical,
            log.keys,
            [*newest_first(told)],
            log.spans,
            log.read,
            lake,
            self._database_row(),
            agreed,
            waits,
            tuple(self.texts),
            at,
            later,
            self.notes,
        )

    def _plan(self) -> StretchPlan:
        """Return how the table's records are decoded, as a batch does it."""
        files = self.entry.files if self.entry else None
        plan = StretchPlan(
            identity=self.connector.identity,
            modes=self.modes,
            schemas={self.table: self.schema} if self.schema else {},
            max_event_bytes=self.config.stream.max_event_bytes,
            known_keys={self.table: tuple(files.key)} if files and files.key else {},
            carried=dict.fromkeys(self._topics(), (self.table,)),
            outputs=self.part.config.source.topics is not None,
            converter=self.connector.converter,
            metadata=tuple(self.config.lake.metadata),
        )
        return alone(plan, frozenset([self.table]))

    def _topics(self) -> list[str]:
        return (self.entry.topics if self.entry else []) or [self.connector.topic_of(self.table)]

    def _epochs(self) -> Sequence[Offsets]:
        if not self.states:
            return ()
        return tuple(self.states[-1].log_of(self.connector.qualifier).epochs)

    def _begin(
        self, batches: TableBatches, log: LogFound, found: Iterable[Traced]
    ) -> dict[bytes, RowAtStart]:
        """Return the rows of the keys before the first commit that has anything of them."""
        versions = [
            made.version
            for one in found
            if isinstance(one, TracedRecord) and not one.resent
            if (made := batches.of_record(one.topic, one.partition, one.offset)) is not None
            if made.version is not None
        ]
        if not versions:
            return {}
        keys, schema = [self.row_key], self.reader.schema()
        names = self.row_key.columns.column_names
        for other in log.keys - {self.row_key.canonical}:
            images = (r.image for r in log.records if r.key == other and r.image)
            if schema is not None and (image := next(images, None)) is not None:
                keys.append(facts_rows.of_image(other, image, names, schema))
        first = min(versions) - 1
        return {key.canonical: facts_rows.at_start(self.reader, key, first) for key in keys}

    def _with_letters(self, told: Sequence[Told]) -> list[Told]:
        """Name the dead letters of records that cannot be decoded."""
        if all(one.fate is not Fate.DEAD_LETTER for one in told):
            return [*told]
        topic = self.config.topics.dead_letters
        letters = (
            dead_letters.letter_of(r.key, None, r.headers, r.timestamp_ms)
            for r in read_all(self.config, topic)
        )
        by_place = {
            (letter.topic, letter.partition, letter.offset): letter.id
            for letter in dead_letters.chosen(letters, LetterFilter())
        }

        def letter(one: Told) -> str:
            what = one.what
            if one.fate is not Fate.DEAD_LETTER or not isinstance(what, TracedRecord):
                return ""
            return by_place.get((what.topic, what.partition, what.offset), "")

        return [replace(one, letter=letter(one)) for one in told]

    # -- the rows ---------------------------------------------------------------------------------

    def _lake(self, at: int | None, newest: int) -> tuple[RowInLake, pa.Table | None]:
        if newest < 0:
            return RowInLake(None), None
        if at is None:
            rows: pa.Table | None = self.reader.read_rows(self.row_key.columns)
        else:
            rows = self.reader.rows_at(at, self.row_key.columns)
            if rows is None:
                self.notes.append(f"the row in version {at} is not known: its files are gone")
        return facts_rows.in_lake(rows, newest if at is None else at), rows

    def _agreement(self, rows: pa.Table | None, at: int | None) -> Agreement:
        if at is not None:
            return Agreement(facts_rows.UNKNOWN, reason=f"version {at} is none of now")
        if self.source is None:
            return Agreement(facts_rows.UNKNOWN, reason="the database's row was not read")
        schema = self.source.found.schema
        kept = self.reader.schema()
        return facts_rows.agreement(self.source, rows, kept, schema)

    def _again(self, lake: RowInLake, agreed: Agreement) -> tuple[RowInLake, Agreement]:
        """Look at both rows again for as long as the lake's changes meanwhile."""
        for _ in range(_LOOKS):
            before = lake.position
            try:
                self._read_source()
            except LakemarkError:
                return lake, agreed
            lake, rows = self._lake(None, max(lake.version, 0))
            agreed = self._agreement(rows, None)
            if agreed.kind in {facts_rows.SAME, facts_rows.NEITHER} or lake.position == before:
                break
        return lake, agreed

    def _database_row(self) -> Image | None:
        if self.source is None or not self.source.found.rows.num_rows:
            return None
        row: Image = self.source.found.rows.to_pylist()[0]
        return row

    def _remark(
        self,
        log: LogFound,
        told: Sequence[Told],
        lake: RowInLake,
        at: int | None,
        begin: Mapping[bytes, RowAtStart],
    ) -> None:
        """Say what is not known."""
        notes = self.notes
        if log.left:
            notes.append(f"{len(log.left)} more keys that the row has had are not followed")
        for span in log.spans:
            if span.first > span.held:
                notes.append(
                    f"{span.topic}-{span.partition} was read from offset {span.first} on: earlier "
                    "records are not told, and one that was sent again there may look new"
                )
            elif span.held:
                notes.append(
                    f"{span.topic}-{span.partition} begins at offset {span.held}: what Kafka no "
                    "longer has is not known"
                )
        if any(one.made is None and one.fate is Fate.APPLIED for one in told):
            notes.append("commits of older records are not known: the table's log, or its notes, "
                         "do not go back that far")  # fmt: skip
        if lake.copies > 1:
            notes.append(
                f"the lake has {lake.copies} rows of this key: "
                f"`lakemark table rebuild {self.table}` makes the table anew"
            )
        key = self.row_key.canonical
        explained = any(one.is_now for one in told)
        start = begin.get(key, RowAtStart())
        from_before = start.net is not None and start.net.position == lake.position
        if at is None and lake.is_alive and not explained and not from_before:
            notes.append("the lake's row is of nothing that was read here: what made it is older "
                         "than that, or is kept no more")  # fmt: skip


def _owner(config: Config, table: str) -> tuple[PipelinePart, Connector]:
    """Return the connector of a table."""
    for part in parts_of(config):
        connector = part.read()
        if unqualified(connector.qualifier, table) is not None:
            return part, connector
    names = ", ".join(config.connector_names)
    raise PipelineError(
        f"{table} is of none of the connectors {names}",
        code="unknown-table",
        hint="write it with its connector's topic prefix, as `lakemark status` does",
    )


def _entry(config: Config, states: Sequence[PipelineState], table: str) -> TableState | None:
    """Return the table's newest state, of the checkpoint or else of the progress topic."""
    if states:
        return states[-1].tables.get(table)
    return tables_of(read_compacted(config, config.topics.progress)).get(table)


def _until(told: Sequence[Told], at: int | None) -> tuple[list[Told], int]:
    """Return what a version of the table has, and how much of it later ones have."""
    if at is None:
        return [*told], 0
    early = [one for one in told if one.made is None or (one.made.version or 0) <= at]
    early = [one for one in early if one.fate is not Fate.WAITING]
    return early, len(told) - len(early)


def _is_now(one: Told, lake: RowInLake, key: bytes) -> bool:
    """Say whether the lake's row is what this has made of it."""
    what = one.what
    if one.fate is not Fate.APPLIED or not lake.position or isinstance(what, TracedSweep):
        return False
    return what.key == key and what.position == lake.position
