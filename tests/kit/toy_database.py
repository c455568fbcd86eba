"""A small database in memory, whose reads know their place in the log: nothing like PostgreSQL.

It has tables of whole numbers (`id`, the key) and texts (`v`). A filter is a text that `v` equals.
What it is asked goes the way of any database: `registered` puts it into the registry.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from lakemark.connectors import registry
from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    Action,
    CatalogLook,
    Difference,
    SourceKeys,
    TableLook,
    read_again,
)
from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.database import (
    CapturedTables,
    ChunkRows,
    Database,
    DatabaseAccess,
    Examination,
    OpenWindow,
    PlannedTables,
    Proof,
    RowsOfSnapshot,
    TableCut,
    Watermark,
)
from lakemark.connectors.log_place import LogEnd, LogPlace, offsets_of, unreadable
from lakemark.connectors.log_watch import LogReader, LogWatch
from lakemark.connectors.preparation import Script, Statement, ToPrepare
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.connectors.refusals import Refusal
from lakemark.errors import RefusedError, TableError
from lakemark.model.columns import Column
from lakemark.model.findings import fine, warning
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange, ranges
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import Mistake, SetTo
from tests.kit.shop import schema_of

CLASS = "org.example.ToyConnector"
SETTINGS = {"connector.class": CLASS}


@dataclass
class ToyServer:
    """What a toy database has.

    Attributes:
        tables: `v` by key, by table.
        place: where its log ends, a position behind its epoch.
        life: name of its life.
        asked: where its log ended when a read asked for it; None for no earlier than its rows.
        ticked: where it ended at the last tick, which is earlier.
    """

    tables: dict[str, dict[int, str]] = field(default_factory=dict)
    place: Callable[[], bytes] = lambda: bytes(16)
    life: str = "the first"
    asked: Callable[[], bytes] | None = None
    ticked: bytes = b""

    def rows(self, table: str) -> dict[int, str]:
        if table not in self.tables:
            raise TableError(f"there is no table {table}", code="table-gone", hint="name another")
        return self.tables[table]


@contextmanager
def registered(server: ToyServer) -> Iterator[DatabaseConfig]:
    """Connectors of `CLASS` have this database while the block runs; gives its address."""

    class Served(ToyDatabase):
        def __init__(self, access: DatabaseAccess) -> None:
            super().__init__(access, server)

    known = {**registry.DATABASES, CLASS: (TRAITS, lambda: Served)}
    with patch.object(registry, "DATABASES", known):
        yield DatabaseConfig.model_construct(url="toy://memory")


@dataclass(frozen=True)
class ToyProof:
    """What was read is all that the log had up to a place."""

    life: str
    place: bytes

    def shows(self, watermark: Watermark) -> bool:
        return watermark.after.life == self.life and watermark.bound <= self.place


@dataclass(frozen=True)
class ToyPlace:
    """A place in its log; the connector commits it as it is."""

    place: bytes

    @property
    def text(self) -> str:
        return self.place.hex()

    def is_sent(self, entries: Sequence[Mapping[str, Any]], *, server: str) -> bool:
        return any(offset["place"] >= self.text for offset in offsets_of(entries, server))

    def is_passed(self, position: bytes) -> bool:
        return position[4:] >= self.place


@dataclass
class ToyLogEnd:
    server: ToyServer

    def place(self) -> ToyPlace:
        return ToyPlace(self.server.place())

    def move(self) -> bool:
        return False

    def drop(self) -> None:
        """There is no session."""


class ToyReader:
    def __init__(self, server: ToyServer) -> None:
        self.server = server

    def read(
        self,
        table: str,
        *,
        span: KeyRange = WHOLE,
        condition: Condition | None = None,
        keys: Sequence[Boundary] | None = None,
        surrogate: str | None = None,
    ) -> ChunkRows:
        rows = self.server.rows(table)
        found = {k: v for k, v in rows.items() if _chosen(k, v, span, condition, surrogate)}
        absent = None
        if keys is not None:
            wanted = [int(key) for (key,) in keys]
            gone = dict.fromkeys((k for k in wanted if k not in rows), None)
            found = {k: v for k, v in found.items() if k in wanted}
            absent = self._rows(table, gone, "id")
        return ChunkRows(self._rows(table, found, "id", "v"), absent, source_ts=0)

    def _rows(self, table: str, rows: Mapping[int, str | None], *names: str) -> RowsOfSnapshot:
        columns = {"id": pa.array(rows, pa.int64()), "v": pa.array(rows.values(), pa.string())}
        keys = pa.array([b"[%d]" % key for key in rows], pa.binary())
        place = self.server.place() if self.server.asked is None else self.server.asked()
        proof = ToyProof(self.server.life, max(place, self.server.ticked))
        chosen = pa.table({name: columns[name] for name in names})
        return RowsOfSnapshot(chosen, pa.chunked_array([keys]), _schema(table), proof)

    def middle(
        self, table: str, span: KeyRange, *, condition: Condition | None, surrogate: str | None
    ) -> Boundary | None:
        found = _ordered(self.server.rows(table), span, condition, surrogate)
        return None if len(found) < 2 else (str(found[len(found) // 2 - 1]),)

    def close(self) -> None:
        """There is no session."""


def _schema(table: str) -> TableSchema:
    return schema_of(table, id="int8", v="text")


def _value(key: int, v: str, surrogate: str | None) -> int | str:
    return v if surrogate == "v" else key


def _chosen(
    key: int, v: str, span: KeyRange, condition: Condition | None, surrogate: str | None
) -> bool:
    one = _value(key, v, surrogate)
    after, upto = (None if b is None else type(one)(b[0]) for b in (span.after, span.upto))
    inside = (after is None or one > after) and (upto is None or one <= upto)
    return inside and (condition is None or condition.parameters == (v,))


def _ordered(
    rows: Mapping[int, str], span: KeyRange, condition: Condition | None, surrogate: str | None
) -> list[int | str]:
    found = {_value(k, v, surrogate) for k, v in rows.items() if _chosen(k, v, span, condition, surrogate)}  # fmt: skip
    return sorted(found)


class ToyWindows:
    """Writes nothing: says where the log ends."""

    def __init__(self, server: ToyServer) -> None:
        self.server = server

    def write(
        self,
        *,
        closes: OpenWindow | None,
        opens: OpenWindow | None,
        reached: ReachedPlace = NOWHERE,
    ) -> Watermark | Proof:
        proof = ToyProof(self.server.life, self.server.place())
        self.server.ticked = proof.place
        return proof if opens is None else Watermark(str(opens.uuid), proof, proof.place)

    def drop(self) -> None:
        """There is no session."""

    def cancel(self) -> None:
        """Nothing waits."""


class ToyQuestions:
    def __init__(self, server: ToyServer) -> None:
        self.server = server

    def condition(self, table: str, text: str) -> Condition:
        ToyDatabase.check_condition(text)
        return Condition("v equals", (text,))

    def forget(self) -> None:
        """Nothing is kept."""

    def key_columns(self, table: str) -> list[Column]:
        return [_schema(table).column("id")] if table in self.server.tables else []

    def blocker(self, proof: Proof) -> str:
        return "nobody"

    def drop(self) -> None:
        """There is no session."""


class ToyWatch:
    def __init__(self, server: ToyServer) -> None:
        self.server = server

    def reader(self) -> LogReader | None:
        return None

    def there(self, tables: frozenset[str]) -> frozenset[str]:
        return tables & self.server.tables.keys()

    def close(self) -> None:
        """There is no session."""


class ToyTable(msgspec.Struct, frozen=True):
    """A `TableLook`: all tables have the same columns, and a number of rows."""

    name: str
    rows: int
    column_names: tuple[str, ...] = ("id", "v")
    numerics: frozenset[str] = frozenset()
    has_key: bool = True
    is_whole: bool = True
    may_fill: bool = False

    def forgotten(self) -> "ToyTable":
        return msgspec.structs.replace(self, rows=-1)


class ToyLook(msgspec.Struct, frozen=True):
    """A `CatalogLook`. The log is lost with the server's life."""

    life: str
    place: str = ""
    tables: dict[str, ToyTable] = {}

    @property
    def end(self) -> bytes:
        return bytes.fromhex(self.place)

    def kept(self, before: "ToyLook | None") -> "ToyLook":
        return msgspec.structs.replace(self, place="")

    def having(self, tables: Mapping[str, TableLook]) -> "ToyLook":
        return msgspec.structs.replace(self, tables=dict(tables))


def _problems(settings: Mapping[str, str]) -> Iterator[Mistake]:
    if settings.get("toy.forgets") == "true":
        yield Mistake("toy.forgets", "changes are lost", "set it to false")


TRAITS = ConnectorTraits(
    connector="toy",
    schemes=("toy",),
    example="toy://memory",
    reads_know_their_place=True,
    has_schema_topic=False,
    hides_tables=False,
    container="box",
    naming=("toy.box",),
    shown=("toy.box",),
    driver=("org.example.",),
    unread_log="the toy forgets it",
    silent_log="the toy remembers all of it",
    problems=_problems,
    findings=lambda settings: [
        warning("connector setting", "toy.box", settings.get("toy.box", ""))
    ],
    has_reader=lambda settings: False,
)


class ToyDatabase(Database):
    traits = TRAITS
    look_form = ToyLook
    table_form = ToyTable
    mended: Mapping[str, str] = {}
    checks = ("database",)

    def __init__(self, access: DatabaseAccess, server: ToyServer) -> None:
        self.access, self.server = access, server

    @staticmethod
    def check_url(database: DatabaseConfig) -> None:
        """Any will do."""

    @staticmethod
    def check_condition(text: str) -> None:
        if not text.isalnum():
            raise RefusedError("a filter is a text", code="bad-condition", hint="write v1")

    @staticmethod
    def check_file(file: Path) -> None:
        """Any will do."""

    @staticmethod
    def schemas_of_file(file: Path, modes: HandlingModes) -> dict[str, TableSchema]:
        return {}

    @staticmethod
    def key_texts(keys: Sequence[bytes], columns: Sequence[Column]) -> list[Boundary]:
        try:
            return [(str(value),) for key in keys for (value,) in [msgspec.json.decode(key, type=list[int])]]  # fmt: skip
        except (msgspec.DecodeError, ValueError):
            raise TableError("no such key", code="key-unreadable", hint="correct it") from None

    @staticmethod
    def committed_position(
        entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str
    ) -> bytes:
        return b""

    def schemas(
        self, tables: Sequence[str] | None, *, captured: Container[str] | None = None
    ) -> dict[str, TableSchema]:
        names = self.server.tables if tables is None else tables
        chosen = tables is not None or captured is None
        return {t: _schema(t) for t in names if t in self.server.tables and (chosen or t in captured)}  # fmt: skip

    def table_names(self) -> list[str]:
        return list(self.server.tables)

    def reasons_against(self, table: str) -> list[Refusal]:
        self.server.rows(table)
        return []

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None = None,
        surrogate: str | None = None,
        within: KeyRange = WHOLE,
    ) -> TableCut:
        rows = self.server.rows(table)
        found = _ordered(rows, within, condition, surrogate)
        edges = [(str(one),) for one in found[chunk_rows - 1 : -1 : chunk_rows]]
        return TableCut(tuple(ranges(edges, within=within)), _schema(table), len(rows))

    def reader(self) -> ToyReader:
        return ToyReader(self.server)

    def window_writer(self, table: str, *, name: str) -> ToyWindows:
        return ToyWindows(self.server)

    @staticmethod
    def log_place(text: str) -> LogPlace:
        if not text.strip() or set(text) - set("0123456789abcdef"):
            raise unreadable(text, "the place in hexadecimal digits")
        return ToyPlace(bytes.fromhex(text))

    def log_end(self, table: str, *, name: str) -> LogEnd:
        return ToyLogEnd(self.server)

    def questions(self, *, name: str) -> ToyQuestions:
        return ToyQuestions(self.server)

    def examine(
        self,
        connector: CapturedTables | None,
        *,
        streams: bool,
        chosen: bool,
        offsets: Sequence[Mapping[str, Any]] = (),
    ) -> Examination:
        tables = None if connector is None else [t for t in self.server.tables if t in connector.tables]  # fmt: skip
        return Examination([fine("database", "toy", "answers")], tables)

    @staticmethod
    def wanted_settings(wanted: ToPrepare) -> list[Mistake]:
        return [Mistake("toy.box", "toys stand in a box", SetTo("toy.box", wanted.user))]

    @staticmethod
    def script(wanted: ToPrepare) -> Script:
        let = [Statement("lakemark reads it", f"LET {table}") for table in wanted.chosen or ()]
        return Script(("Tell it to the toys.",), (), tuple(let))

    def planned_tables(self, connector: CapturedTables) -> PlannedTables:
        names = [table for table in self.server.tables if table in connector.tables]
        sizes = [(table, len(self.server.tables[table]), 0) for table in names]
        return PlannedTables(self.schemas(names), sizes, chunk_bytes=1 << 20)

    def log_watch(self, *, name: str, within: timedelta) -> LogWatch:
        return ToyWatch(self.server)

    def look(self, wanted: Callable[[str], bool], *, before: CatalogLook | None = None) -> ToyLook:
        tables = {t: ToyTable(t, len(rows)) for t, rows in self.server.tables.items() if wanted(t)}
        return ToyLook(self.server.life, self.server.place().hex(), tables)

    @staticmethod
    def differences(
        before: CatalogLook | None, now: CatalogLook, *, source_key: SourceKeys = NO_KEYS
    ) -> list[Difference]:
        assert isinstance(now, ToyLook)
        if before is None:
            return []
        assert isinstance(before, ToyLook)
        lost = before.life != now.life
        found = [read_again(t, "other-life", f"{t} may lack changes") for t in now.tables if lost]
        for name in sorted({*before.tables, *now.tables}):
            if name not in now.tables:
                what, action = f"{name} was dropped", Action.GONE
                found.append(Difference(name, "table-dropped", action, what))
            elif name not in before.tables:
                found.append(Difference(name, "table-new", Action.NOTHING, f"{name} is new"))
            elif before.tables[name].rows < 0:
                found.append(read_again(name, "table-made-anew", f"{name} is another one"))
        return found

    @staticmethod
    def are_fills(before: TableLook, now: TableLook, changes: Sequence[Difference]) -> bool:
        return False

    def missing_values(
        self, table: TableLook, missing: Mapping[str, str]
    ) -> dict[str, pa.Array | None]:
        return {}
