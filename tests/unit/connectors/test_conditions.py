"""Conditions: what is understood and how it is bound, what is refused, and nothing else raised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.condition_text import MAX_DEPTH, MAX_LENGTH, MAX_LITERALS
from lakemark.connectors.postgres.conditions import check, rebuilt
from lakemark.errors import RefusedError
from lakemark.model.key_ranges import Condition

TYPES = {
    "id": "integer",
    "status": "text",
    "total": "numeric",
    "paid": "boolean",
    "at": "timestamp with time zone",
    "uid": "uuid",
    "Mixed": "text",
    "user": "text",
    'a%"b': "integer",
}


def condition(text: str) -> Condition:
    return rebuilt(text, table="public.orders", types=TYPES)


def refused(text: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        condition(text)
    assert caught.value.hint
    return caught.value


INT4 = "%s::pg_catalog.int4"
GOOD = [
    ("status = 'open'", '("status" = %s)', "open"),
    ("color = 'blue'".replace("color", "STATUS"), '("status" = %s)', "blue"),
    ("\"Mixed\" != 'it''s 5%s'", '("Mixed" <> %s)', "it's 5%s"),
    ("orders.id = 1", f'("id" = {INT4})', "1"),
    ("Public.ORDERS.id = 1", f'("id" = {INT4})', "1"),
    ('"public"."orders".id = 1', f'("id" = {INT4})', "1"),
    ('"a%""b" % 2 = 1', f'(("a%%""b" %% {INT4}) = {INT4})', "2", "1"),
    ("\"user\" = 'x' and orders.user = 'y'", '(("user" = %s) AND ("user" = %s))', "x", "y"),
    ("paid", '"paid"'),
    ("not paid or paid is not true", '((NOT "paid") OR (NOT ("paid" IS TRUE)))'),
    ("paid is null and status is not null", '(("paid" IS NULL) AND ("status" IS NOT NULL))'),
    ("id isnull or id notnull", '(("id" IS NULL) OR ("id" IS NOT NULL))'),
    ("(id = 1) = paid", f'(("id" = {INT4}) = "paid")', "1"),
    ("id = 1 is true", f'(("id" = {INT4}) IS TRUE)', "1"),
    ("id in (1, -2, id + 3)", f'("id" IN ({INT4}, {INT4}, ("id" + {INT4})))', "1", "-2", "3"),
    ("status not in ('a', null)", '(NOT ("status" IN (%s, NULL)))', "a"),
    ("id between 1 and 2 and paid", f'(("id" BETWEEN {INT4} AND {INT4}) AND "paid")', "1", "2"),
    ("id between symmetric 2 and 1", f'("id" BETWEEN SYMMETRIC {INT4} AND {INT4})', "2", "1"),
    ("status like 'a\\%%'", '("status" LIKE %s)', "a\\%%"),
    ("status not ilike 'a!%' escape '!'", '("status" NOT ILIKE %s ESCAPE %s)', "a!%", "!"),
    ("status like 'a\\' escape ''", '("status" LIKE %s ESCAPE %s)', "a\\", ""),
    ("id is distinct from 5", f'("id" IS DISTINCT FROM {INT4})', "5"),
    ("id is not distinct from null", '("id" IS NOT DISTINCT FROM NULL)'),
    ("'x' is null", "(%s::pg_catalog.text IS NULL)", "x"),
    ("lower(status) = 'x'", '(pg_catalog.lower("status") = %s)', "x"),
    ("coalesce(paid, false)", 'coalesce("paid", FALSE)'),
    ("abs(-id) > 1", f'(pg_catalog.abs((- "id")) > {INT4})', "1"),
    ("at > date '2024-01-01'", '("at" > %s::pg_catalog.date)', "2024-01-01"),
    (
        "at > timestamp(3) with time zone '2024-01-01'",
        '("at" > %s::pg_catalog.timestamptz(3))',
        "2024-01-01",
    ),
    ("at - '1 day' > '2024-01-01'", '(("at" - %s) > %s)', "1 day", "2024-01-01"),
    ("at < '1 day'::interval + at", '("at" < (%s::pg_catalog.interval + "at"))', "1 day"),
    ("total = cast('1.5' as numeric(5, 2))", '("total" = %s::pg_catalog.numeric(5, 2))', "1.5"),
    ("status = 'abc'::char", '("status" = %s::pg_catalog.bpchar(1))', "abc"),
    ("id = -5::int2", '("id" = (- %s::pg_catalog.int4::pg_catalog.int2))', "5"),
    ("id = (-5)::int2", '("id" = %s::pg_catalog.int4::pg_catalog.int2)', "-5"),
    ("status = 'today'", '("status" = %s)', "today"),
    ("status = 'now' and at is null", '(("status" = %s) AND ("at" IS NULL))', "now"),
    ("true and null", "(TRUE AND NULL)"),
    ("a".replace("a", "(((paid)))"), '"paid"'),
]


@pytest.mark.parametrize(("text", "sql", "parameters"), [(t, s, tuple(p)) for t, s, *p in GOOD])
def test_a_condition_is_built_anew_and_its_literals_bound(text, sql, parameters):
    assert condition(text) == Condition(sql, parameters)
    check(text)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("2147483647", "int4"),
        ("2147483648", "int8"),
        ("9223372036854775807", "int8"),
        ("9223372036854775808", "numeric"),
        ("9" * 5000, "numeric"),
        ("1.0", "numeric"),
        ("1e3", "numeric"),
        ("5.", "numeric"),
    ],
)
def test_numbers_have_the_type_that_postgresql_gives_them(number, kind):
    assert condition(f"id = {number}") == Condition(f'("id" = %s::pg_catalog.{kind})', (number,))


@pytest.mark.parametrize(
    ("number", "kind"),
    [("-2147483648", "int4"), ("-2147483649", "int8"), ("-9223372036854775808", "int8")],
)
def test_the_least_numbers_have_it_too(number, kind):
    assert condition(f"id = {number}").sql == f'("id" = %s::pg_catalog.{kind})'


def test_what_binds_tighter_is_as_in_postgresql():
    assert condition("paid or not paid and id = 1 + 2 * 3").sql == (
        f'("paid" OR ((NOT "paid") AND ("id" = ({INT4} + ({INT4} * {INT4})))))'
    )
    assert condition("id - 1 - 2 = 0").sql == f'((("id" - {INT4}) - {INT4}) = {INT4})'


@pytest.mark.slow
def test_many_terms_and_values():
    terms = " or ".join(f"id={n}" for n in range(5000))
    assert len(condition(terms).parameters) == 5000
    values = ",".join(["1"] * MAX_LITERALS)
    assert len(condition(f"id in ({values})").parameters) == MAX_LITERALS


# Text, code, a word of the message or the hint.
BAD = [
    ("", "bad-condition", "empty"),
    (" \n", "bad-condition", "empty"),
    ("status = 'open", "bad-condition", "not closed"),
    ('status = "open', "bad-condition", "not closed"),
    ("status =", "bad-condition", "cannot be read"),
    ("status = 'a' 'b'", "condition-not-allowed", "two texts"),
    ("order by id", "bad-condition", "double quotes"),
    ("id", "bad-condition", "comparison is expected"),
    ("'t'", "bad-condition", "comparison is expected"),
    ("paid and 1", "bad-condition", "comparison is expected"),
    ("id = 1 = true", "bad-condition", "parentheses"),
    ("id < total < 5", "bad-condition", "parentheses"),
    ("id in ()", "bad-condition", "IN without values"),
    ("status like 'a\\'", "bad-condition", "escape character"),
    ("status like 'a!!!' escape '!'", "bad-condition", "escape character"),
    ("status like 'a' escape 'ab'", "bad-condition", "ESCAPE"),
    ("status like 'a' escape status", "bad-condition", "cannot be read"),
    ("status = 'a' escape 'b'", "bad-condition", ""),
    ("id = 1\u00a0or id = 2", "bad-condition", ""),
    ("id = 1e", "bad-condition", "number"),
    ("id = 1_000", "bad-condition", "cannot be read"),
    ("id = 1abc", "bad-condition", ""),
    ("id\0 = 1", "bad-condition", "character"),
    ("id = '\0'", "bad-condition", "character"),
    ("id = '\ud800'", "bad-condition", "character"),
    ("id = 1" + " " * MAX_LENGTH, "bad-condition", "longer"),
    ("x" * 1_000_000, "bad-condition", "longer"),
    (f"id in ({','.join(['1'] * (MAX_LITERALS + 1))})", "bad-condition", "literals"),
    ("(" * 30_000, "bad-condition", "deeply"),
    ("(" * (MAX_DEPTH + 1) + "paid" + ")" * (MAX_DEPTH + 1), "bad-condition", "deeply"),
    ("not " * (MAX_DEPTH + 1) + "paid", "bad-condition", "deeply"),
    ("id = " + "- " * 10_000 + "1", "bad-condition", "deeply"),
    ("id = " + "+".join(["id"] * 5000), "bad-condition", "deeply"),
    ("statu = 'x'", "unknown-column", "did you mean status?"),
    ("Mixed = 'x'", "unknown-column", "did you mean Mixed?"),
    ('"ID" = 1', "unknown-column", "its columns are id, status"),
    ("ctid = '(0,1)'", "unknown-column", "no such column"),
    ("xmin = 5 or tableoid = 1", "unknown-column", "no such column"),
    ("orders is null", "unknown-column", "no such column"),
    *(
        (text, "condition-not-allowed", word)
        for text, word in [
            ("customers.id = 1", "another table"),
            ("private.orders.id = 1", "another table"),
            ("shop.public.orders.id = 1", "COLUMN"),
            ("orders.* = 1", "*"),
            ("(orders).id = 1", "composite"),
            ("select * from orders where id = 1", "after WHERE"),
            ("SELECT", "after WHERE"),
            ("where id = 1", "after WHERE"),
            ("id = 1; drop table orders", "semicolon"),
            ("id = 1;", "after WHERE"),
            ("id = 1 -- and paid", "comment"),
            ("id /* x */ = 1", "comment"),
            ("id = 1 /* /* */ or true */", "comment"),
            ("id in (select 1)", "SELECT"),
            ("exists (select 1)", "exists"),
            ("id = (table orders)", ""),
            ("pg_sleep(10) is null", "the function pg_sleep"),
            ("pg_catalog.pg_sleep(10) is null", "the function pg_sleep"),
            ('"pg_sleep"(10) is null', "a function"),
            ("pg_read_file('/etc/passwd') = status", "the function pg_read_file"),
            ("now() > at", "write the time itself"),
            ("current_timestamp > at", "current_timestamp"),
            ("user = 'postgres'", 'written "user"'),
            ("random() < 0.5", "random"),
            ("generate_series(1, 5) = id", "generate_series"),
            ("nextval('s') = id", "nextval"),
            ("date_trunc('day', at) = at", "date_trunc"),
            ("lower(status) over () = 'x'", ""),
            ("lower(distinct status) = 'x'", "DISTINCT"),
            ("count(*) > 1", "count"),
            ("case when paid then paid end", ""),
            ("id = any(array[1])", "IN"),
            ("id = array[1]", "an array"),
            ("status[1] = 'x'", "an array"),
            ("(id, status) = (1, 'x')", "one by one"),
            ("status || 'x' = 'y'", "operator"),
            ("status ~ '(a+)+$'", "operator"),
            ("status ~~ 'a'", "operator"),
            ("status similar to 'a'", "SIMILARTO"),
            ("status = 'x' collate \"C\"", "COLLATE"),
            ("at at time zone 'utc' > at", "has its zone"),
            ("id ^ 99 = 1", "operator"),
            ("id & 1 = 1", "operator"),
            ("status -> 'a' = 'b'", "operator"),
            ("id operator(pg_catalog.=) 1", "operator"),
            ("id = $1", "parameter"),
            ("id = :id", "parameter"),
            ("id = ?", "parameter"),
            ("id = @id", "parameter"),
            ("status = $$x$$", "dollar"),
            ("status = $a$x$a$", "dollar"),
            ("status = E'\\n'", "prefix"),
            ("status = U&'\\0041'", "prefix"),
            ("status = N'x'", "prefix"),
            ("status = B'1'", "prefix"),
            ("id = 0x1f", "hexadecimal"),
            ("status = `x`", "operator"),
            ("status::int = 1", "only literals are cast"),
            ("(id + 1)::text = 'x'", "only literals are cast"),
            ("'1'::text::int = id", "only literals are cast"),
            ("'pg_class'::regclass = id", "cast"),
            ("'x'::public.mood = status", "another type"),
            ("'{1}'::int[] = id", "an array"),
            ("'5'::money = id", "another type"),
            ("at > interval '1 day'", "'1 day'::interval"),
            ("at > 'now'", "moves"),
            ("at in ('2024-01-01', ' Today 12:00')", "moves"),
            ("at between 'yesterday' and '2024-01-01'", "moves"),
            ("at > 'tomorrow'::timestamptz", "moves"),
            ("at > coalesce(at, 'yesterday')", "moves"),
            ("{{ id }} = 1", "operator"),
            ("id is 5", "NULL, TRUE or FALSE"),
            ("status is json", "NULL, TRUE or FALSE"),
        ]
    ),
]


@pytest.mark.parametrize(("text", "code", "word"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.sampled(30)
def test_a_condition_is_refused_and_its_user_told_why(text, code, word):
    error = refused(text)
    assert error.code == code
    assert word in f"{error.message}; {error.hint}"


# What needs the columns, their types or the table's name.
WITH_COLUMNS = {"id", "customers.id = 1", "private.orders.id = 1"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (text, code)
        for text, code, word in BAD
        if code != "unknown-column" and word != "moves" and text not in WITH_COLUMNS
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.sampled(25)
def test_without_columns_the_rest_is_checked(text, code):
    with pytest.raises(RefusedError) as caught:
        check(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "text",
    [
        "status = 'secret'; x",
        "status = secret",
        'status = "secret"',
        "status = 'secret' 'b'",
        "f('secret') = 1",
        "status like 'secret\\'",
        "'secret'::money = 1",
        "id = 1 and 'secret'",
        "status = E'secret'",
        "status = $$secret$$",
        "'secret' ~ status",
        "date '2024' 'secret'",
        "at > 'now' and status = 'secret'",
    ],
)
def test_a_refusal_never_shows_a_literal(text):
    error = refused(text)
    assert "secret" not in f"{error.message} {error.hint}"


def read_or_refused(read, text: str) -> Condition | RefusedError | None:
    try:
        return read(text)
    except RefusedError as error:
        return error


PIECES = st.sampled_from(
    [
        *("id", "status", "paid", "at", "nope", "orders", '"Mixed"', "public", "date", "user"),
        *("=", "<>", "<", "and", "or", "not", "in", "between", "like", "escape", "is", "null"),
        *("(", ")", ",", ".", "::", "+", "-", "*", "/", "%", "1", "2.5", "'x'", "'a%'", "true"),
        *("cast", "as", "int", "interval", "timestamp", "with", "time", "zone", "select", "case"),
        *("when", "end", "lower", "coalesce", "array", "[", "]", "distinct", "from", "struct"),
        *("values", "table", "row", "exists", "any", "over", "filter", "collate", "--", "/*", ";"),
        *("$1", "?", ":", "@", "{", "}", "||", "~", "^", "&", "\n", "\u00a0", "\\", "'", '"', "é"),
    ]
)


@given(st.lists(PIECES, max_size=60).map(" ".join) | st.text())
def test_any_text_is_a_condition_or_refused(text):
    for read in (condition, check):
        answer = read_or_refused(read, text)
        if isinstance(answer, RefusedError):
            assert answer.code in {"bad-condition", "unknown-column", "condition-not-allowed"}
            assert answer.message
            assert answer.hint
        elif answer is not None:
            assert answer.sql.count("%s") == len(answer.parameters)
            assert ";" not in answer.sql
            assert "--" not in answer.sql
