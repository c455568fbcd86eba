"""Conditions built anew hold on a real server where the user's own text holds."""

import logging
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres.conditions import rebuilt
from lakemark.connectors.postgres.postgres_chunks import boundaries, open_table, read_chunk
from lakemark.connectors.postgres.postgres_session import Session, connect
from lakemark.errors import RefusedError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition
from lakemark.settings.config import DatabaseConfig
from tests.kit.servers import servers

pytestmark = pytest.mark.integration

TYPES = {
    "id": "integer",
    "small": "smallint",
    "big": "bigint",
    "total": "numeric",
    "ratio": "double precision",
    "status": "text",
    "code": "bpchar",
    "short": "character varying",
    "mood": "public.mood",
    "ci": "public.citext",
    "uid": "uuid",
    "at": "timestamp with time zone",
    "local": "timestamp without time zone",
    "day": "date",
    "paid": "boolean",
    "raw": "bytea",
    'Mi%"xed': "text",
}
TABLE = """
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN label AS varchar(3);
CREATE TABLE orders (id int PRIMARY KEY, small smallint, big bigint, total numeric(10, 2),
    ratio float8, status text, code char(4), short label, mood mood, ci citext, uid uuid,
    at timestamptz, local timestamp, day date, paid boolean, raw bytea, "Mi%""xed" text);
INSERT INTO orders SELECT i, i - 20, i * 3000000000, i * 1.25, i / 7.0,
    (ARRAY['open', 'a%b', 'it''s', E'back\\\\slash', NULL, 'OPEN', ''])[1 + i % 7],
    (ARRAY['ab', 'AB', NULL, 'abcd'])[1 + i % 4], (ARRAY['ab', 'abc', NULL])[1 + i % 3],
    (ARRAY['sad', 'ok', 'happy', NULL])[1 + i % 4]::mood, (ARRAY['Open', 'x', NULL])[1 + i % 3],
    md5((i % 5)::text)::uuid, '2024-01-01'::timestamptz + i * interval '7 h',
    '2024-01-01'::timestamp + i * interval '5 h', '2024-01-01'::date + i,
    (ARRAY[true, false, NULL])[1 + i % 3], decode(md5((i % 3)::text), 'hex'),
    (ARRAY['50%', '%s', NULL])[1 + i % 3]
FROM generate_series(1, 40) i
"""
NUMBERS = ["id", "small", "big", "total", "ratio", "orders.id", "public.Orders.SMALL"]
TIMES = ["at", "local", "day"]
MOMENTS = [
    *("'2024-01-05'", "'2024-01-05 12:00'", "date '2024-01-04'", "timestamp '2024-01-05 05:00'"),
    *("'2024-01-03 00:00+02'::timestamptz", "timestamp with time zone '2024-01-09 00:00Z'"),
    *("cast('2024-01-07' as date)", "'infinity'", "'2024-01-05 12:00:00.6'::timestamp(0)"),
]
TEXTS = ["status", "short", "code", "ci", '"Mi%""xed"', "lower(status)", "upper(ci)"]
WORDS = [
    *("'open'", "'OPEN'", "'ab'", "'abcd'", "'it''s'", "'a%b'", "'back\\slash'", "'50%'", "'%s'"),
    *("''", "'abcdef'::varchar(3)", "'ab  '", "'ab'::char(4)", "'x'::char", "text 'x'", "'today'"),
]
PATTERNS = ["'%'", "'a%'", "'_b%'", "'a\\%b'", "'back\\\\%'", "'%S'", "'50\\%'", "'ab__'", "''"]
ESCAPES = [" escape '!'", " escape ''", " escape '\\'", " escape '%'", ""]
COMPARED = ["=", "<>", "!=", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"]
TESTS = ["is null", "is not null", "isnull", "notnull", "is true", "is not false", "is unknown"]


def joined(*parts: object) -> st.SearchStrategy[str]:
    """One text of parts that are texts, lists to choose from or strategies."""
    known = [
        st.just(p) if isinstance(p, str) else st.sampled_from(p) if isinstance(p, list) else p
        for p in parts
    ]
    return st.tuples(*known).map(" ".join)


def either(*choices: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from([one for choice in choices for one in choice])


number = st.recursive(
    either(NUMBERS, ["1", "-5", "0.5", "3000000000", "-2147483648", "1e2", "'7'::int", "5::int8"]),
    lambda inner: (
        joined(inner, ["+", "-", "*", "/", "%"], inner)
        | joined("(", inner, ")")
        | joined("-", inner)
        | joined("abs(", inner, ")")
        | joined("coalesce(", inner, ", 0)")
    ),
    max_leaves=4,
)
moment = either(TIMES, MOMENTS) | joined(TIMES, ["+", "-"], ["'1 day'::interval"])
compared = st.one_of(
    joined(number, COMPARED, number),
    joined(number, ["in", "not in"], "(", number, ",", number, ", null )"),
    joined(number, ["between", "not between", "between symmetric"], number, "and", number),
    joined(TIMES, COMPARED, moment),
    joined(["at - '1 day'", "day - 1", "local + '36 hours'"], COMPARED, ["'2024-01-03'"]),
    joined(TIMES, "in (", MOMENTS, ",", MOMENTS, ")"),
    joined(TIMES, "between", MOMENTS, "and", MOMENTS),
    joined(either(TEXTS, WORDS), COMPARED, either(WORDS, TEXTS)),
    joined(TEXTS, ["in", "not in"], "(", WORDS, ",", WORDS, ")"),
    joined(either(TEXTS, WORDS), ["like", "ilike", "not like"], PATTERNS, ESCAPES),
    joined("mood", COMPARED, ["'ok'", "'happy'", "mood", "null"]),
    joined("mood in ( 'ok', 'sad' )"),
    joined("uid", COMPARED, ["'CFCD208495D565EF66E7DFF9F98764DA'", "uid"]),
    joined("uid in ('cfcd2084-95d5-65ef-66e7-dff9f98764da', uid )"),
    joined("raw", COMPARED, ["'\\xcfcd208495d565ef66e7dff9f98764da'", "raw"]),
    joined(["'x'", "null", "'t'::text", "status", "paid", "coalesce('x', null)"], TESTS[:4]),
    joined(["paid", "'t'", "null", "coalesce(paid, 'f')"], TESTS),
    st.sampled_from(["paid", "true", "false", "coalesce(paid, false)", "'yes'::bool", "null"]),
)
condition = st.recursive(
    compared,
    lambda inner: (
        joined(inner, ["and", "or"], inner)
        | joined("not", inner)
        | joined("(", inner, ")")
        | joined("(", inner, ") =", "(", inner, ")")
        | joined(inner, TESTS)
        | joined(inner, COMPARED[:3], inner)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with (
        servers("conditions", ("postgres",)) as server,
        server.fresh_database() as database,
    ):
        for statement in TABLE.split(";\n"):
            database.execute(statement)
        with connect(DatabaseConfig(url=database.dsn)) as opened:
            yield opened


def rows(session: Session, where: bytes, parameters: object = None) -> list[int] | str:
    """Ids of the rows for which it holds, or the state of the error."""
    try:
        found = session.execute(b"SELECT id FROM public.orders WHERE " + where, parameters)
        return sorted(id_ for (id_,) in found.fetchall())
    except psycopg.Error as error:
        return str(error.sqlstate)


def both(session: Session, found: Condition) -> list[list[int] | str]:
    """As parameters of the server, and as the literals that a COPY has."""
    written = psycopg.ClientCursor(session).mogrify(found.sql.encode(), found.parameters)
    return [
        rows(session, found.sql.encode(), found.parameters),
        rows(session, written.encode()),
    ]


SYNTAX_ERROR = "42601"
SEEN = {"rows": 0, "refused": 0, "errors": 0}


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=condition)
def test_the_same_rows_as_the_text_itself(session: Session, text: str):
    expected = rows(session, text.encode())
    try:
        found = rebuilt(text, table="public.orders", types=TYPES)
    except RefusedError as error:
        SEEN["refused"] += 1
        # Comparisons in a row are refused, and 'today' near any time.
        known = isinstance(expected, str) or error.code == "bad-condition" or "'today'" in text
        if not known:
            pytest.fail(f"{error}: {text}")
        return
    if expected == SYNTAX_ERROR:
        return  # parentheses that PostgreSQL asks for
    SEEN["errors" if isinstance(expected, str) else "rows"] += 1
    for result in both(session, found):
        if isinstance(expected, str):
            assert isinstance(result, str), (text, found)
        else:
            assert result == expected, (text, found)


def test_the_expressions_above_were_worth_it():
    total = sum(SEEN.values())
    assert SEEN["rows"] > total / 2, SEEN


@pytest.mark.parametrize(
    "value",
    [
        "'; DROP TABLE orders; --",
        "') OR (1=1",
        "\\",
        "\\'; --",
        "%s",
        "%(x)s",
        "$1",
        "$$",
        "\x01\n",
    ],
)
def test_a_literal_stays_one(session: Session, value: str):
    quoted = value.replace("'", "''")
    found = rebuilt(f"status = '{quoted}' or id = 1", table="public.orders", types=TYPES)
    assert value in found.parameters
    assert both(session, found) == [[1], [1]]


def test_a_condition_in_a_chunk_and_in_boundaries(session: Session):
    text = "mood = 'ok' and at > '2024-01-03' and \"Mi%\"\"xed\" like '5_\\%' and id % 2 = 1"
    wanted = rebuilt(text, table="public.orders", types=TYPES)
    with open_table(session, "public.orders", HandlingModes(), settings={}) as opened:
        chunk = read_chunk(opened, condition=wanted)
        expected = rows(session, text.encode())
        assert sorted(chunk.rows.column("id").to_pylist()) == expected
        assert len(expected) > 1
        assert len(boundaries(opened, 1, condition=wanted)) == len(expected) - 1


def test_the_parser_logs_nothing(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for text in ("vacuum full 'secret'", "set x = 'secret'", "copy orders to 'secret'", "id = 1"):
        try:
            rebuilt(text, table="public.orders", types=TYPES)
        except RefusedError:
            continue
    assert not caplog.records


@pytest.mark.parametrize(
    "number",
    [
        *("1", "2147483647", "2147483648", "-2147483648", "-(2147483648)", "- - 2147483648"),
        *("-(-2147483648)", "-9223372036854775808", "9223372036854775808", "1.", ".5", "1e3"),
        *("-(5)::int2", "5::int8", "'5'::numeric(3, 1)", "2147483647 + 0.5", "7 / 2", "-7 % 4"),
    ],
)
def test_numbers_have_the_type_and_value_that_the_server_gives_them(session: Session, number: str):
    found = rebuilt(f"id = {number}", table="public.orders", types=TYPES)
    built = found.sql.removeprefix('("id" = ').removesuffix(")")
    query = f"SELECT pg_typeof({built})::text, ({built})::text"
    shown = session.execute(query.encode(), found.parameters * 2).fetchone()
    own = f"SELECT pg_typeof({number})::text, ({number})::text"
    assert shown == session.execute(own.encode()).fetchone()
