"""Statements of which no event tells, and what they do to the rows of a table `t`, or `u`."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from lakemark.connectors.catalog_changes import Action

NOTHING, _, READ_AGAIN, REBUILD, STOP, GONE = Action

Case = tuple[Sequence[str], Sequence[str], AbstractSet[tuple[str, str, Action]]]

TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, a text, b text, n numeric(10,2), v varchar(20))",
    "ALTER TABLE t ADD d int DEFAULT 5, ADD w text NOT NULL DEFAULT 'w'",
    "INSERT INTO t SELECT i, 'a' || i, 'b' || i, i, 'v' || i FROM generate_series(1, 9) AS i",
)
PARTS = (
    "CREATE TABLE t (id int, a text, d int DEFAULT 5, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE p2 PARTITION OF t FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE p3 (id int PRIMARY KEY, a text, d int)",
    "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 150) AS i",
    "INSERT INTO p3 SELECT i, 'a' FROM generate_series(200, 250) AS i",
)
SMALL = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, d int DEFAULT 5)",
    "INSERT INTO t SELECT i, i FROM generate_series(1, 9) AS i",
)
NARROW = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "INSERT INTO t SELECT generate_series(1, 50)",
)
FILLED_AND_ATTACHED = (
    "CREATE TABLE p4 (LIKE t INCLUDING ALL); INSERT INTO p4 VALUES (301);"
    " ALTER TABLE t ATTACH PARTITION p4 FOR VALUES FROM (300) TO (400)"
)
OLD_COLUMN = (*TABLE, "ALTER TABLE t ADD COLUMN x int DEFAULT 7")
ENUM = "CREATE TYPE mood AS ENUM ('sad', 'ok')"
INHERITED = ("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (t)")
AGAIN_ADDED = ("t", "column-added", READ_AGAIN)
REWRITTEN = ("t", "rewritten", READ_AGAIN)
ALIKE = ("t", "storage-changed", NOTHING)
PARTS_CHANGED = ("t", "partitions-changed", READ_AGAIN)
LABEL = ("t", "label-renamed", READ_AGAIN)

CASES: Final[Mapping[str, Case]] = {
    "a column": (TABLE, ["ALTER TABLE t ADD x int"], {("t", "column-added", NOTHING)}),
    "a column with a constant default": (
        TABLE,
        ["ALTER TABLE t ADD x int DEFAULT 7"],
        {AGAIN_ADDED},
    ),
    "its default changed in the same transaction": (
        TABLE,
        ["ALTER TABLE t ADD x int DEFAULT 7; ALTER TABLE t ALTER x SET DEFAULT 8"],
        {AGAIN_ADDED},
    ),
    "its default dropped in the same transaction": (
        TABLE,
        ["ALTER TABLE t ADD x int DEFAULT 7; ALTER TABLE t ALTER x DROP DEFAULT"],
        {AGAIN_ADDED},
    ),
    "the time of the statement": (
        TABLE,
        ["ALTER TABLE t ADD x timestamptz DEFAULT now()"],
        {AGAIN_ADDED},
    ),
    "a value for each row": (
        TABLE,
        ["ALTER TABLE t ADD x uuid DEFAULT gen_random_uuid()"],
        {AGAIN_ADDED},
    ),
    "a serial": (TABLE, ["ALTER TABLE t ADD x serial"], {AGAIN_ADDED}),
    "an identity": (
        TABLE,
        ["ALTER TABLE t ADD x int GENERATED ALWAYS AS IDENTITY"],
        {AGAIN_ADDED},
    ),
    "a stored generated column": (
        TABLE,
        ["ALTER TABLE t ADD x int GENERATED ALWAYS AS (id * 2) STORED"],
        {AGAIN_ADDED},
    ),
    "generated no more": (
        ("CREATE TABLE t (id int PRIMARY KEY, x int GENERATED ALWAYS AS (id * 2) STORED)",),
        ["ALTER TABLE t ALTER x DROP EXPRESSION"],
        {("t", "generated-no-more", READ_AGAIN)},
    ),
    "a constant default that VACUUM FULL wrote to the rows": (
        TABLE,
        ["ALTER TABLE t ADD x int DEFAULT 7", "VACUUM FULL t"],
        {AGAIN_ADDED},
    ),
    "numbers computed": (
        TABLE,
        ["ALTER TABLE t ALTER n TYPE numeric(10,2) USING n * 1.2"],
        {REWRITTEN},
    ),
    "texts computed, of another length": (
        TABLE,
        ["ALTER TABLE t ALTER v TYPE varchar(40) USING upper(v)"],
        {REWRITTEN},
    ),
    "texts computed": (TABLE, ["ALTER TABLE t ALTER a TYPE text USING upper(a)"], {REWRITTEN}),
    "texts with a default computed": (
        TABLE,
        ["ALTER TABLE t ALTER w TYPE text USING upper(w)"],
        {REWRITTEN},
    ),
    "another type": (TABLE, ["ALTER TABLE t ALTER id TYPE bigint"], {REWRITTEN}),
    "longer texts": (
        TABLE,
        ["ALTER TABLE t ALTER v TYPE varchar(40)"],
        {("t", "type-changed", NOTHING)},
    ),
    "texts of any length": (
        TABLE,
        ["ALTER TABLE t ALTER v TYPE text"],
        {("t", "type-changed", NOTHING)},
    ),
    "a column renamed": (
        TABLE,
        ["ALTER TABLE t RENAME a TO x"],
        {("t", "column-renamed", READ_AGAIN)},
    ),
    "the key's column renamed": (
        TABLE,
        ["ALTER TABLE t RENAME id TO x"],
        {("t", "column-renamed", READ_AGAIN), ("t", "key-changed", STOP)},
    ),
    "two names swapped": (
        TABLE,
        ["ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b"],
        {("t", "column-replaced", READ_AGAIN)},
    ),
    "a column dropped": (TABLE, ["ALTER TABLE t DROP a"], {("t", "column-dropped", NOTHING)}),
    "a column made anew": (
        TABLE,
        ["ALTER TABLE t DROP a", "ALTER TABLE t ADD a text"],
        {("t", "column-replaced", READ_AGAIN)},
    ),
    "another key": (
        TABLE,
        ["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, w)"],
        {("t", "key-changed", STOP)},
    ),
    "a table renamed": (
        TABLE,
        ["ALTER TABLE t RENAME TO elsewhere"],
        {("t", "table-renamed", GONE)},
    ),
    "a table renamed to a captured name": (
        TABLE,
        ["ALTER TABLE t RENAME TO u"],
        {("t", "table-renamed", GONE), ("u", "table-renamed-to", READ_AGAIN)},
    ),
    "two tables swapped": (
        (*TABLE, "CREATE TABLE u (id int PRIMARY KEY)"),
        ["ALTER TABLE t RENAME TO x", "ALTER TABLE u RENAME TO t", "ALTER TABLE x RENAME TO u"],
        {("t", "table-renamed-to", READ_AGAIN), ("u", "table-renamed-to", READ_AGAIN)},
    ),
    "another schema": (
        (*TABLE, "CREATE SCHEMA IF NOT EXISTS other"),
        ["ALTER TABLE t SET SCHEMA other", "ALTER TABLE other.t RENAME TO t_{}"],
        {("t", "table-renamed", GONE)},
    ),
    "a table dropped": (TABLE, ["DROP TABLE t"], {("t", "table-dropped", GONE)}),
    "a table made anew": (
        TABLE,
        ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"],
        {("t", "table-made-anew", READ_AGAIN)},
    ),
    "a new table": (
        TABLE,
        ["CREATE TABLE u (id int PRIMARY KEY)"],
        {("u", "table-new", NOTHING)},
    ),
    "VACUUM FULL": (TABLE, ["VACUUM FULL t"], {ALIKE}),
    "VACUUM FULL of rows older than a column": (OLD_COLUMN, ["VACUUM FULL t"], {ALIKE}),
    "CLUSTER": (TABLE, ["CLUSTER t USING t_pkey"], {ALIKE}),
    "SET UNLOGGED and back": (
        TABLE,
        ["ALTER TABLE t SET UNLOGGED", "ALTER TABLE t SET LOGGED"],
        {ALIKE},
    ),
    "TRUNCATE": (TABLE, ["TRUNCATE t"], {ALIKE}),
    "VACUUM and ANALYZE": (TABLE, ["VACUUM FREEZE t", "ANALYZE t"], set()),
    "VACUUM of the catalog": (TABLE, ["VACUUM FULL pg_attribute", "VACUUM FULL pg_class"], set()),
    "statistics": (TABLE, ["ALTER TABLE t ALTER a SET STATISTICS 500"], set()),
    "statistics, and VACUUM FULL": (
        TABLE,
        ["ALTER TABLE t ALTER a SET STATISTICS 500", "VACUUM FULL t"],
        {ALIKE},
    ),
    "longer texts, and VACUUM FULL": (
        TABLE,
        ["ALTER TABLE t ALTER v TYPE varchar(40)", "VACUUM FULL t"],
        {("t", "type-changed", NOTHING), ALIKE},
    ),
    "without large values: VACUUM FULL of rows older than a column": (
        (*SMALL, "ALTER TABLE t ADD COLUMN x int DEFAULT 7"),
        ["VACUUM FULL t"],
        {ALIKE},
    ),
    "without large values: a column with a default computed": (
        SMALL,
        ["ALTER TABLE t ALTER d TYPE int USING d * 2"],
        {REWRITTEN},
    ),
    "without large values: a column without one computed": (
        SMALL,
        ["ALTER TABLE t ALTER a TYPE int USING a * 2"],
        {REWRITTEN},
    ),
    "without large values: statistics of a column with a default, and VACUUM FULL": (
        SMALL,
        ["ALTER TABLE t ALTER d SET STATISTICS 500", "VACUUM FULL t"],
        {ALIKE},
    ),
    "without large values: statistics of a column without one, and VACUUM FULL: in doubt": (
        SMALL,
        ["ALTER TABLE t ALTER a SET STATISTICS 500", "VACUUM FULL t"],
        {REWRITTEN},
    ),
    "a default": (TABLE, ["ALTER TABLE t ALTER a SET DEFAULT 'x'"], set()),
    "NOT NULL": (TABLE, ["ALTER TABLE t ALTER a SET NOT NULL"], set()),
    "a partition attached": (
        PARTS,
        ["ALTER TABLE t ATTACH PARTITION p3 FOR VALUES FROM (200) TO (300)"],
        {PARTS_CHANGED},
    ),
    "a partition detached": (PARTS, ["ALTER TABLE t DETACH PARTITION p2"], {PARTS_CHANGED}),
    "a partition detached concurrently": (
        PARTS,
        ["ALTER TABLE t DETACH PARTITION p2 CONCURRENTLY"],
        {PARTS_CHANGED},
    ),
    "a partition dropped": (PARTS, ["DROP TABLE p2"], {PARTS_CHANGED}),
    "a partition made": (
        PARTS,
        ["CREATE TABLE p4 PARTITION OF t FOR VALUES FROM (300) TO (400)"],
        {("t", "partitions-made", NOTHING)},
    ),
    "a partition made, with rows of events": (
        PARTS,
        [
            "CREATE TABLE p4 PARTITION OF t FOR VALUES FROM (300) TO (400)",
            "INSERT INTO t VALUES (301)",
            "ANALYZE p4",
        ],
        {("t", "partitions-made", NOTHING)},
    ),
    "a partition made and truncated": (
        PARTS,
        [
            "CREATE TABLE p4 PARTITION OF t FOR VALUES FROM (300) TO (400)",
            "INSERT INTO t VALUES (301)",
            "TRUNCATE p4",
        ],
        {PARTS_CHANGED},
    ),
    "a partition made, filled and attached in one transaction": (
        PARTS,
        [FILLED_AND_ATTACHED],
        {PARTS_CHANGED},
    ),
    "a partition made, detached, filled and attached": (
        PARTS,
        [
            "CREATE TABLE p4 PARTITION OF t FOR VALUES FROM (300) TO (400)",
            "ALTER TABLE t DETACH PARTITION p4",
            "INSERT INTO p4 VALUES (301)",
            "ALTER TABLE t ATTACH PARTITION p4 FOR VALUES FROM (300) TO (400)",
        ],
        {PARTS_CHANGED},
    ),
    "a partition of partitions attached": (
        (
            *PARTS,
            "CREATE TABLE m (LIKE t INCLUDING ALL) PARTITION BY RANGE (id)",
            "CREATE TABLE leaf PARTITION OF m FOR VALUES FROM (300) TO (400)",
            "INSERT INTO m VALUES (301)",
        ),
        ["ALTER TABLE t ATTACH PARTITION m FOR VALUES FROM (300) TO (400)"],
        {PARTS_CHANGED, ("t", "partitions-made", NOTHING)},
    ),
    "a partition truncated": (PARTS, ["TRUNCATE p2"], {PARTS_CHANGED, ALIKE}),
    "a partition truncated and filled": (
        PARTS,
        ["TRUNCATE p2", "INSERT INTO t VALUES (101)", "VACUUM ANALYZE p2"],
        {PARTS_CHANGED, ALIKE},
    ),
    "VACUUM FULL of a partition: in doubt": (PARTS, ["VACUUM FULL p2"], {PARTS_CHANGED, ALIKE}),
    "VACUUM FULL of a partition without large values: in doubt": (
        NARROW,
        ["VACUUM FULL p1"],
        {PARTS_CHANGED, ALIKE},
    ),
    "a partition SET UNLOGGED and back": (
        PARTS,
        ["ALTER TABLE p2 SET UNLOGGED", "ALTER TABLE p2 SET LOGGED"],
        {ALIKE},
    ),
    "a partition truncated, SET UNLOGGED and back": (
        (*PARTS, "ANALYZE p2"),
        ["TRUNCATE p2", "ALTER TABLE p2 SET UNLOGGED", "ALTER TABLE p2 SET LOGGED"],
        {PARTS_CHANGED, ALIKE},
    ),
    "a column of partitions": (
        PARTS,
        ["ALTER TABLE t ADD x int"],
        {("t", "column-added", NOTHING)},
    ),
    "a column of partitions with a constant default": (
        PARTS,
        ["ALTER TABLE t ADD x int DEFAULT 7"],
        {AGAIN_ADDED},
    ),
    "a column of partitions with a value for each row": (
        PARTS,
        ["ALTER TABLE t ADD x uuid DEFAULT gen_random_uuid()"],
        {AGAIN_ADDED},
    ),
    "a column of partitions computed": (
        PARTS,
        ["ALTER TABLE t ALTER a TYPE text USING upper(a)"],
        {REWRITTEN},
    ),
    "a table that no longer inherits": (INHERITED, ["DROP TABLE child"], set()),
    "a label": (
        (ENUM, "CREATE TABLE t (id int PRIMARY KEY, m mood)"),
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"],
        {LABEL},
    ),
    "a label of arrays": (
        (ENUM, "CREATE TABLE t (id int PRIMARY KEY, m mood[])"),
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"],
        {LABEL},
    ),
    "a label under domains": (
        (
            ENUM,
            "CREATE DOMAIN single AS mood",
            "CREATE DOMAIN many AS single[]",
            "CREATE DOMAIN most AS many",
            "CREATE TABLE t (id int PRIMARY KEY, m most)",
        ),
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"],
        {LABEL},
    ),
    "a label that was added": (
        (ENUM, "CREATE TABLE t (id int PRIMARY KEY, m mood)"),
        ["ALTER TYPE mood ADD VALUE 'glad' BEFORE 'ok'"],
        set(),
    ),
    "a label of another table": (
        (ENUM, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE x (m mood)"),
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"],
        set(),
    ),
}
"""By what is done: what is there, the statements, and what comes of it; `t` and `u` are looked at."""
