"""The catalog gives the schema that the connector's own events carry."""

import json

import pytest
from pydantic import SecretStr

from lakemark.connectors.postgres.postgres import conninfo, read_schemas, table_names
from lakemark.errors import ConfigError, DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_envelope
from lakemark.settings.config import DatabaseConfig
from stack.local import Database
from stack.processes import free_port

pytestmark = pytest.mark.integration

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS numeric(8,3) CHECK (VALUE > 0);
CREATE EXTENSION hstore;
CREATE SCHEMA odd;
CREATE TYPE odd.point AS (x int, y int);
CREATE TYPE odd.int4range AS RANGE (subtype = int4);
CREATE TABLE everything (
    op text, before jsonb, after jsonb, source text, pair odd.point, pairs odd.point[],
    span odd.int4range, b int NOT NULL, a varchar(10) NOT NULL, PRIMARY KEY (a, b),
    i2 smallint, i8 bigint, f4 real, f8 double precision, yes boolean, tx text NOT NULL,
    vc varchar(7), fixed char(5), n1 numeric(10,2), n2 numeric, n3 positive, mo money,
    ba bytea, js json, jb jsonb, xm xml, uu uuid, en mood,
    da date, ti time, t3 time(3), tz timetz, ts timestamp, ts3 timestamp(3), tsz timestamptz,
    iv interval, b1 bit(1), b9 bit(9), vb varbit(4), ip inet, ma macaddr, rg int4range,
    pt point, hs hstore, ai int[], at text[], an numeric(6,2)[], ae mood[], att timestamp[],
    gen int GENERATED ALWAYS AS (b * 2) STORED
)"""


def settings(database: Database) -> DatabaseConfig:
    return DatabaseConfig(url=database.dsn.replace("postgres://", "postgresql://"))


@pytest.mark.parametrize(
    "handling",
    [
        {},
        {
            "decimal.handling.mode": "string",
            "time.precision.mode": "connect",
            "binary.handling.mode": "hex",
            "hstore.handling.mode": "map",
            "interval.handling.mode": "string",
        },
        {"decimal.handling.mode": "double", "time.precision.mode": "microseconds"},
    ],
    ids=["defaults", "strings", "numbers"],
)
def test_catalog_and_event_agree_on_every_column(database: Database, handling):
    for statement in TYPES.split(";\n"):
        database.execute(statement)
    wrapped = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}
    # Rows of the connector's own snapshot have generated columns too, no change of theirs does.
    database.start_connector({**wrapped, **handling, "snapshot.mode": "no_data"})
    database.execute(
        "INSERT INTO everything (a, b, tx, pair, pairs, span)"
        " VALUES ('x', 1, 'y', ROW(1, 2), ARRAY[ROW(1, 2)::odd.point], '[1,2)')"
    )
    (record,) = database.stack.kafka.read(database.topic("everything"), count=1)
    event = from_envelope(
        "public.everything",
        json.loads(record.value())["schema"],
        json.loads(record.key())["schema"],
    )

    modes = HandlingModes.from_connector(database.config)
    found = read_schemas(
        settings(database), ["public.everything"], modes, settings=database.config
    )["public.everything"]

    assert found.key == event.key == ("a", "b")
    assert "gen" not in found.by_name
    here = {c.name: c for c in found.columns}
    there = {c.name: c for c in event.columns}
    assert list(here) == list(there)
    for name, column in there.items():
        assert here[name].type == column.type, name
        assert here[name].encoding == column.encoding, name


def test_tables_by_name_or_all_of_them(database: Database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    database.execute("CREATE SCHEMA odd")
    database.execute('CREATE TABLE odd."Two Words.x" (x int)')
    database.execute("CREATE VIEW v AS SELECT * FROM a")
    given, modes = settings(database), HandlingModes()
    some = read_schemas(given, ['odd."Two Words.x"', "public.nope", "nonsense"], modes, settings={})
    assert set(some) == {'odd."Two Words.x"'}
    assert some['odd."Two Words.x"'].key == ()
    assert set(read_schemas(given, None, modes, settings={})) == {
        "public.a",
        "public.debezium_signal",
        'odd."Two Words.x"',
    }
    assert read_schemas(given, [], modes, settings={}) == {}
    assert table_names(given) == ['odd."Two Words.x"', "public.a", "public.debezium_signal"]
    captured = read_schemas(given, None, modes, settings={}, captured={"public.a", "public.nope"})
    assert set(captured) == {"public.a"}


def test_the_connector_s_column_lists_and_keys_are_honoured(database: Database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY, name text, secret text, other text)")
    connector = {
        "column.exclude.list": r"public\.a\.SECRET,public.a.id",
        "message.key.columns": r"public\.b:x; public\.(a|c):name,other",
    }
    found = read_schemas(settings(database), ["public.a"], HandlingModes(), settings=connector)
    assert found["public.a"].key == ("name", "other")
    assert [c.name for c in found["public.a"].columns] == ["name", "other"]


def test_a_database_that_is_away_is_tried_again_and_one_that_refuses_is_not(database: Database):
    modes = HandlingModes()
    away = DatabaseConfig(url=f"postgresql://u@127.0.0.1:{free_port()}/x")
    with pytest.raises(DependencyError) as caught:
        read_schemas(away, None, modes, settings={})
    assert caught.value.code == "database-unavailable"
    url = settings(database).url
    missing = DatabaseConfig(url=f"{url.rsplit('/', 1)[0]}/no_such_database")
    with pytest.raises(ConfigError, match="does not exist"):
        read_schemas(missing, None, modes, settings={})


def test_the_password_of_its_own_wins_over_the_address():
    given = DatabaseConfig(url="postgresql://u:old@h/d", password=SecretStr("it's new"))
    assert "old" not in conninfo(given)
    assert "it\\'s new" in conninfo(given)
