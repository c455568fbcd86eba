"""What PostgreSQL's catalog looks like before and after each statement that no event tells."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lakemark.connectors.catalog_changes import Action, Difference
from lakemark.connectors.postgres.catalog_differences import differences
from lakemark.connectors.postgres.catalog_facts import SourceFacts, TableFacts
from lakemark.connectors.postgres.postgres_facts import read_facts
from lakemark.settings.table_id import text_of
from stack.postgres import Postgres, binaries_of
from stack.processes import wait_for
from tests.kit.catalog_statements import CASES, NOTHING, PARTS, READ_AGAIN, STOP, TABLE

pytestmark = pytest.mark.integration

PUBLICATION, SLOT = "changes", "changes"
LISTS = 15  # the first version with row filters and column lists


@dataclass
class Source:
    """A server with an empty schema `lake`, and a user who has no rights in it."""

    version: int
    session: psycopg.Connection
    looker: psycopg.Connection
    seen: set[int] = field(default_factory=set)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement)

    def look(self, *tables: str, publication: str = PUBLICATION) -> SourceFacts:
        """Return the facts of these tables, as they come back from JSON."""
        facts = read_facts(
            self.looker,
            [text_of("lake", table) for table in tables],
            publication=publication,
            slot=SLOT,
            known=self.seen,
        )
        self.seen |= {table.oid for table in facts.tables.values()}
        return msgspec.json.decode(msgspec.json.encode(facts), type=SourceFacts)

    def table(self, name: str = "t") -> TableFacts:
        return self.look(name).tables[text_of("lake", name)]


@pytest.fixture(scope="module", params=[15, 18], ids=["postgres15", "postgres18"])
def server(request, tmp_path_factory) -> Iterator[Postgres]:
    binaries = binaries_of(request.param)
    if binaries is None:
        pytest.skip(f"PostgreSQL {request.param} is not on this machine")
    place = tmp_path_factory.mktemp(f"postgres{request.param}")
    server = Postgres(directory=place / "data", log=place / "postgres.log", binaries=binaries)
    server.start()
    try:
        with server.connect() as session:
            session.execute("CREATE ROLE looker LOGIN")
        yield server
    finally:
        server.stop()


@pytest.fixture
def source(server: Postgres) -> Iterator[Source]:
    looking = make_conninfo(server.dsn(), user="looker")
    with server.connect() as session, psycopg.connect(looking) as looker:
        session.execute("CREATE SCHEMA lake")
        session.execute("SET search_path = lake")
        session.execute("SET client_min_messages = error")
        yield Source(session.info.server_version // 10_000, session, looker)
        session.execute("DROP SCHEMA lake CASCADE")
        session.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")


def kinds(found: list[Difference]) -> set[tuple[str, str, Action]]:
    return {(d.table.removeprefix("lake."), d.kind, d.action) for d in found}


@pytest.mark.parametrize("case", CASES)
def test_a_statement_is_seen_for_what_it_does_to_the_rows(source: Source, case):
    there, done, expected = CASES[case]
    source.run(*there, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    source.run(f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = true)")
    before = source.look("t", "u")
    assert differences(before, source.look("t", "u")) == []
    source.run(*(statement.format(source.version) for statement in done))
    assert kinds(differences(before, source.look("t", "u"))) == expected


def test_what_a_table_is_called_now_is_known_although_it_is_not_captured(source: Source):
    source.run(*TABLE)
    before = source.look("t")
    source.run('ALTER TABLE t RENAME TO "else.where"')
    (gone,) = differences(before, source.look("t"))
    assert (gone.kind, gone.other) == ("table-renamed", 'lake."else.where"')


def test_the_value_of_older_rows_is_that_of_the_statement(source: Source):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    before = source.look("t")
    for setting in ("bytea_output = escape", "TimeZone = 'Asia/Tokyo'", "DateStyle = 'German'"):
        source.looker.execute(f"SET {setting}")
    source.looker.commit()
    source.run(
        "ALTER TABLE t ADD i int DEFAULT 7; ALTER TABLE t ALTER i SET DEFAULT 8",
        "ALTER TABLE t ADD x text DEFAULT 'a, \"b\"'",
        "ALTER TABLE t ADD e text DEFAULT ''",
        "ALTER TABLE t ADD l int[] DEFAULT '{1,NULL,3}'",
        "ALTER TABLE t ADD y bytea DEFAULT '\\x00ff'",
        "ALTER TABLE t ADD k box DEFAULT '((1,1),(0,0))'",
        "ALTER TABLE t ADD s timestamptz DEFAULT '2026-01-02 03:04:05+00'",
    )
    assert {d.column: d.fill for d in differences(before, source.look("t"))} == {
        "i": "7",
        "x": 'a, "b"',
        "e": "",
        "l": "{1,NULL,3}",
        "y": "\\x00ff",
        "k": "(1,1),(0,0)",
        "s": "2026-01-02 03:04:05+00",
    }


def test_a_table_is_described_whatever_its_names_are(source: Source):
    source.run(
        f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
        "CREATE SCHEMA IF NOT EXISTS other",
        "DROP TYPE IF EXISTS other.mood",
        "GRANT USAGE ON SCHEMA other TO looker",
        "CREATE TYPE other.mood AS ENUM ('b', 'a')",
        'CREATE TABLE "odd "".t" ("a ""b" int, "é" varchar(9) NOT NULL, gone int,'
        ' m other.mood, PRIMARY KEY ("é", "a ""b"))',
        'ALTER TABLE "odd "".t" DROP gone',
        'CREATE UNIQUE INDEX "i ""1" ON "odd "".t" ("é") INCLUDE (m)',
        'CREATE UNIQUE INDEX i2 ON "odd "".t" (m)',
        'CREATE UNIQUE INDEX i3 ON "odd "".t" (m) WHERE m IS NOT NULL',
        'CREATE UNIQUE INDEX i4 ON "odd "".t" (lower("é"))',
    )  # fmt: skip
    source.looker.execute("SET search_path = other")
    source.looker.commit()
    facts = source.table('odd ".t')
    assert [(c.number, c.name, c.type, c.modifier) for c in facts.columns] == [
        (1, 'a "b', "integer", -1),
        (2, "é", "character varying", 13),
        (4, "m", "other.mood", -1),
    ]
    assert (facts.kind, facts.logged) == ("r", True)
    assert facts.filenode > 0
    assert facts.toast == 0  # its texts are too short for one
    assert facts.key == (2, 1)
    assert [(k.name, k.columns, k.not_null) for k in facts.unique_keys] == [
        ('odd ".t_pkey', (2, 1), True),
        ('i "1', (2,), True),
        ("i2", (4,), False),
    ]
    assert (facts.identity, facts.identity_columns) == ("d", (1, 2))
    assert [label for _, label in facts.labels["other.mood"]] == ["b", "a"]


def test_parts_of_all_levels_are_described(source: Source):
    source.run(
        "CREATE TABLE t (id int, a text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE m PARTITION OF t FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf (gone int, a text, id int PRIMARY KEY)",
        "ALTER TABLE leaf DROP gone",
        "ALTER TABLE m ATTACH PARTITION leaf FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE leaf REPLICA IDENTITY FULL",
    )
    facts = source.table()
    assert (facts.filenode, facts.identity_columns) == (0, (1, 2))
    by_name = {part.name: part for part in facts.parts.values()}
    assert set(by_name) == {"lake.m", "lake.leaf"}
    assert by_name["lake.m"].filenode == 0
    leaf = by_name["lake.leaf"]
    assert min(leaf.filenode, leaf.toast) > 0
    assert (leaf.uncounted, leaf.pageless, leaf.is_first) == (True, True, False)
    assert (leaf.identity, leaf.identity_columns) == ("f", (1, 2))
    source.run("INSERT INTO t VALUES (1)", "ANALYZE leaf")
    (leaf,) = source.table().leaves.values()
    assert (leaf.uncounted, leaf.pageless) == (False, False)


# --- replica identity ---------------------------------------------------------------------------


BY_OTHERS = (
    "CREATE UNIQUE INDEX i ON t (v)",
    "ALTER TABLE t ALTER v SET NOT NULL",
    "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
)


@pytest.mark.parametrize(
    ("statements", "hint"),
    [
        ([], "DEFAULT"),
        (["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE"], "FULL"),
        (
            ["ALTER TABLE t DROP CONSTRAINT t_pkey", 'CREATE UNIQUE INDEX "I" ON t (id)'],
            'USING INDEX "I"',
        ),
    ],
    ids=["a primary key", "a deferrable key", "no primary key"],
)
def test_a_replica_identity_without_the_key_stops_and_its_hint_mends_it(
    source: Source, statements, hint
):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    assert differences(None, source.look("t")) == []
    source.run(*BY_OTHERS, *statements)
    (stop,) = differences(None, source.look("t"), source_key={"lake.t": ("id",)})
    assert (stop.kind, stop.action) == ("identity-without-key", STOP)
    assert stop.hint == f'ALTER TABLE "lake"."t" REPLICA IDENTITY {hint}'
    source.run(stop.hint)
    assert differences(None, source.look("t"), source_key={"lake.t": ("id",)}) == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD UNIQUE (id)",
    ],
)
def test_where_an_identity_has_no_columns_the_server_lets_no_row_go(source: Source, statement):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", statement)
    assert differences(None, source.look("t"), source_key={"lake.t": ("id",)}) == []
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        source.run("DELETE FROM t")


def test_partitions_have_identities_of_their_own(source: Source):
    source.run(
        *PARTS,
        f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",  # says nothing of the partitions' events
    )
    assert differences(None, source.look("t")) == []
    source.run(
        "TRUNCATE t",  # its texts are all the same
        "CREATE UNIQUE INDEX i ON p2 (a)",
        "ALTER TABLE p2 ALTER a SET NOT NULL",
        "ALTER TABLE p2 REPLICA IDENTITY USING INDEX i",
    )
    (stop,) = differences(None, source.look("t"))
    assert stop.hint == 'ALTER TABLE "lake"."p2" REPLICA IDENTITY DEFAULT'
    source.run(stop.hint)
    assert differences(None, source.look("t")) == []


@pytest.mark.parametrize(
    ("identity", "columns"), [("FULL", (1, 2, 3, 4, 5, 6, 7)), ("DEFAULT", (1,)), ("NOTHING", ())]
)
def test_columns_of_an_old_row(source: Source, identity, columns):
    source.run(*TABLE, f"ALTER TABLE t REPLICA IDENTITY {identity}")
    assert source.table().identity_columns == columns


# --- the publication ----------------------------------------------------------------------------


def test_a_table_that_leaves_the_publication_and_comes_back(source: Source):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    before = source.look("t")
    source.run(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE t")
    without = source.look("t")
    (stop,) = differences(before, without)
    assert (stop.kind, stop.action) == ("not-published", STOP)
    assert stop.hint == f'ALTER PUBLICATION "{PUBLICATION}" ADD TABLE "lake"."t"'
    assert differences(None, without) == [stop]
    source.run(stop.hint)
    back = source.look("t")
    assert kinds(differences(without, back)) == {("t", "published-again", READ_AGAIN)}
    assert kinds(differences(before, back)) == {("t", "published-again", READ_AGAIN)}
    assert differences(back, source.look("t")) == []


def test_a_publication_that_is_not_there(source: Source):
    source.run(*TABLE)
    (stop,) = differences(None, source.look("t"))
    source.run(stop.hint)
    assert differences(None, source.look("t")) == []
    assert differences(None, source.look("t", publication="")) == []


def names_that_are_published(source: Source) -> set[str]:
    rows = source.session.execute(
        "SELECT tablename FROM pg_publication_tables WHERE pubname = %s AND schemaname = 'lake'",
        [PUBLICATION],
    )
    return {name for (name,) in rows}


@pytest.mark.parametrize("root", ["false", "true"])
@pytest.mark.parametrize("what", ["ALL TABLES", "TABLE t", "TABLE m", "TABLE leaf", "TABLE t, leaf",
                                  "TABLE plain", "TABLES IN SCHEMA lake"])  # fmt: skip
def test_a_table_is_published_as_the_server_has_it(source: Source, what, root):
    """The server's own view waits for locks, so it is not asked but here."""
    if "SCHEMA" in what and source.version < LISTS:
        pytest.skip("schemas came with PostgreSQL 15")
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE m PARTITION OF t FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF m FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {PUBLICATION} FOR {what} WITH (publish_via_partition_root = {root})",
    )
    facts = source.look("t", "m", "leaf", "plain", "unlogged").tables.values()
    assert {
        table.name.removeprefix("lake.") for table in facts if table.published
    } == names_that_are_published(source)


def test_a_partitioned_table_is_published_by_its_hint(source: Source):
    source.run(*PARTS, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    (stop,) = differences(None, source.look("t"))
    source.run(stop.hint)
    assert differences(None, source.look("t")) == []
    source.run(f"DROP PUBLICATION {PUBLICATION}", f"CREATE PUBLICATION {PUBLICATION}")
    (stop,) = differences(None, source.look("t"))
    source.run(*stop.hint.split("; "))
    assert differences(None, source.look("t")) == []


def test_an_unlogged_table_is_in_no_log(source: Source):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    source.run("ALTER TABLE t SET UNLOGGED")
    (stop,) = differences(None, source.look("t"))
    assert stop.kind == "not-published"
    source.run(stop.hint)
    assert differences(None, source.look("t")) == []


def test_other_rows_or_columns_are_published(source: Source):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    before = source.look("t")
    assert before.tables["lake.t"].column_list is None
    source.run(f"ALTER PUBLICATION {PUBLICATION} SET TABLE t WHERE (id > 1)")
    filtered = source.look("t")
    assert filtered.tables["lake.t"].row_filter == "(id > 1)"
    assert kinds(differences(before, filtered)) == {("t", "row-filter-changed", READ_AGAIN)}
    source.run(f"ALTER PUBLICATION {PUBLICATION} SET TABLE t (id, a)")
    listed = source.look("t")
    assert listed.tables["lake.t"].column_list == ("id", "a")
    assert kinds(differences(filtered, listed)) == {
        ("t", "row-filter-changed", READ_AGAIN),
        ("t", "column-list-changed", READ_AGAIN),
    }
    source.run(f"ALTER PUBLICATION {PUBLICATION} SET TABLE t (id, a)")
    assert differences(listed, source.look("t")) == []


def test_generated_columns_begin_to_come(source: Source):
    if source.version < 18:
        pytest.skip("publications have no generated columns before PostgreSQL 18")
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, x int GENERATED ALWAYS AS (id * 2) STORED)",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t",
    )
    before = source.look("t")
    source.run(f"ALTER PUBLICATION {PUBLICATION} SET (publish_generated_columns = stored)")
    found = differences(before, source.look("t"))
    assert kinds(found) == {("t", "column-list-changed", READ_AGAIN)}


# --- the server and the slot --------------------------------------------------------------------


def test_a_slot_that_goes_and_comes_again(source: Source):
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    make = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
    drop = f"SELECT pg_drop_replication_slot('{SLOT}')"
    source.run(make)
    before = source.look("t")
    assert before.slot_present
    assert differences(before, before) == []
    source.run(drop)
    without = source.look("t")
    assert kinds(differences(before, without)) == {("", "slot-gone", NOTHING)}
    source.run("INSERT INTO t VALUES (10)", make)
    back = source.look("t")
    source.run(drop)
    assert kinds(differences(without, back)) == {("t", "slot-made-anew", READ_AGAIN)}


def test_a_slot_that_was_made_anew_between_two_looks(source: Source):
    """Statistics are written late: the test waits until the server shows them."""
    source.run(*TABLE, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    make = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
    drop = f"SELECT pg_drop_replication_slot('{SLOT}')"
    get = (
        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{SLOT}', NULL, NULL,"
        f" 'proto_version', '1', 'publication_names', '{PUBLICATION}')"
    )

    def sent(count: int) -> SourceFacts:
        """The look at a slot that has sent so many transactions more."""
        for number in range(count):
            source.run(f"INSERT INTO t VALUES ({100 + number})")
        source.run("DELETE FROM t WHERE id >= 100", get)
        return wait_for(
            lambda: found if (found := source.look("t")).slot_sent >= count else None,
            20,
            "the slot's statistics",
        )

    source.run(make)
    first = source.look("t")
    before = sent(4)
    assert kinds(differences(first, before)) == set()
    source.run(drop, make)
    now = source.look("t")
    assert kinds(differences(before, now)) == {("t", "slot-made-anew", READ_AGAIN)}
    assert kinds(differences(before, sent(1))) == {("t", "slot-made-anew", READ_AGAIN)}
    assert kinds(differences(now, source.look("t"))) == set()
    source.run(drop)


def test_the_server_is_known_and_a_right_that_was_taken_is_no_error(source: Source):
    facts = source.look("t")
    (system,) = source.session.execute(
        "SELECT system_identifier::text FROM pg_control_system()"
    ).fetchone()
    assert (facts.system, facts.timeline) == (system, 1)
    assert facts.version // 10_000 == source.version
    functions = "pg_control_system(), pg_control_checkpoint()"
    source.run(f"REVOKE EXECUTE ON FUNCTION {functions} FROM public")
    try:
        facts = source.look("t")
    finally:
        source.run(f"GRANT EXECUTE ON FUNCTION {functions} TO public")
    assert (facts.system, facts.timeline) == ("", 0)


# --- how it looks -------------------------------------------------------------------------------


def test_a_look_waits_for_no_lock(source: Source, server: Postgres):
    source.run(
        *PARTS, f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t, p3", "CREATE TABLE u (id int)"
    )
    with server.connect() as other, other.transaction():
        other.execute("LOCK TABLE lake.t, lake.p1, lake.p3, lake.u IN ACCESS EXCLUSIVE MODE")
        source.looker.execute("SET statement_timeout = '5s'")
        source.looker.commit()
        assert set(source.look("t", "p3", "u").tables) == {"lake.t", "lake.p3", "lake.u"}


def test_a_look_at_many_tables_is_a_few_queries(source: Source, monkeypatch):
    columns = ", ".join(f"c{n} text" for n in range(19))
    for number in range(200):
        source.run(f"CREATE TABLE t{number} (id int PRIMARY KEY, {columns})")
    source.run(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    names = [f"t{number}" for number in range(200)]
    source.look(*names)
    asked = []
    execute = psycopg.Connection.execute
    monkeypatch.setattr(
        psycopg.Connection, "execute", lambda *a, **k: asked.append(a[1]) or execute(*a, **k)
    )
    began = time.perf_counter()
    facts = read_facts(
        source.looker, [text_of("lake", name) for name in names], publication=PUBLICATION, slot=SLOT
    )
    print(f"{1000 * (time.perf_counter() - began):.0f} ms")
    assert len(asked) <= 14
    assert [len(table.columns) for table in facts.tables.values()] == [20] * 200
