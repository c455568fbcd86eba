"""Conditions: a filter that a user wrote, parsed and built anew for a chunk's SELECT.

Nothing of the text is pasted into a statement. Allowed are boolean expressions over the table's own
columns: comparisons, IS [NOT] DISTINCT FROM, AND, OR, NOT, IN lists, BETWEEN, [I]LIKE with ESCAPE,
IS [NOT] NULL, TRUE, FALSE; arithmetic (+ - * / %), casts of literals to plain types, boolean
columns, parentheses; and four functions: lower, upper, abs, coalesce. They are immutable, read one
row and are cheap, and no comparison replaces them. date_trunc does not belong to them: it depends
on the session's time zone, and a comparison with both ends does the same and uses an index.

Every literal is a parameter:

- A text is ``%s`` without a type. psycopg sends it with the type unknown, `ClientCursor` writes a
  plain literal, and PostgreSQL finds its type as for the user's: a uuid or an enum beside such a
  column, an interval added to a timestamp, a pattern after LIKE. A cast to the column's type would
  be wrong for the last two.
- A number is ``%s::int4``, int8 or numeric: the type that PostgreSQL gives it by its size.
- A cast literal has the type of its cast on top.

TRUE, FALSE and NULL are words, not values. Times without a zone are UTC, as the reader's session
is. Whether an operator fits its operands is PostgreSQL's to say.

Pure, and nothing but `RefusedError` is raised, which never shows a literal.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from sqlglot import exp

from lakemark.connectors.postgres.condition_text import HINT, bad, not_allowed, too_deep, tree
from lakemark.connectors.postgres.key_sql import escaped
from lakemark.errors import RefusedError, cut, nearest
from lakemark.model.key_ranges import Condition
from lakemark.settings.table_id import pair_of

_MAX_TREE: Final = 100  # operators in a row, such as a + b + c; AND and OR do not count

_COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
_JUNCTIONS: Final[dict[type[exp.Expression], str]] = {exp.And: " AND ", exp.Or: " OR "}
_ARITHMETIC: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%%",
}
_FUNCTIONS: Final[dict[type[exp.Expression], str]] = {
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Abs: "abs",
}
_LIKES: Final[dict[type[exp.Expression], str]] = {exp.Like: "LIKE", exp.ILike: "ILIKE"}
# Types by the parser's name: PostgreSQL's own name, and how many numbers may follow it.
_TYPES: Final[dict[exp.DType, tuple[str, int]]] = {
    exp.DType.BOOLEAN: ("bool", 0),
    exp.DType.SMALLINT: ("int2", 0),
    exp.DType.INT: ("int4", 0),
    exp.DType.BIGINT: ("int8", 0),
    exp.DType.DECIMAL: ("numeric", 2),
    exp.DType.FLOAT: ("float4", 0),
    exp.DType.DOUBLE: ("float8", 0),
    exp.DType.TEXT: ("text", 0),
    exp.DType.VARCHAR: ("varchar", 1),
    exp.DType.CHAR: ("bpchar", 1),
    exp.DType.BPCHAR: ("bpchar", 1),
    exp.DType.DATE: ("date", 0),
    exp.DType.TIME: ("time", 1),
    exp.DType.TIMETZ: ("timetz", 1),
    exp.DType.TIMESTAMP: ("timestamp", 1),
    exp.DType.TIMESTAMPTZ: ("timestamptz", 1),
    exp.DType.INTERVAL: ("interval", 0),
    exp.DType.UUID: ("uuid", 0),
    exp.DType.VARBINARY: ("bytea", 0),
}
_OF_TIME: Final = re.compile(r"date|time|\bts")  # also domains and ranges of times
# Words in a time that mean another one every day.
_MOVING: Final = re.compile(r"(?<![a-z])(now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE)
_CASTS_HINT: Final = (
    "only literals are cast, and to plain types: '2024-01-01'::date, '1 day'::interval,"
    " '5'::bigint, '...'::uuid"
)
# What nodes of the tree are called in a message, where the parser's name says too little.
_NAMES: Final[dict[type[exp.Expression], str]] = {
    exp.Tuple: "a row of values",
    exp.Star: "*",
    exp.Dot: "a field of a composite value",
    exp.AtTimeZone: "AT TIME ZONE",
    exp.Concat: "two texts in a row",
    exp.Interval: "INTERVAL '...'",
}
_HINTS: Final[dict[type[exp.Expression], str]] = {
    exp.Tuple: "compare the columns one by one, joined by AND",
    exp.Interval: "write '1 day'::interval",
    exp.AtTimeZone: "compare with a literal that has its zone: '2024-01-01 00:00+02'::timestamptz",
}
_INT4: Final = 2**31
# One filter is built for each of its tables; the parser may take two seconds for the longest.
_tree: Final = lru_cache(maxsize=8)(tree)
_INT8: Final = 2**63


def rebuilt(text: str, *, table: str, types: Mapping[str, str]) -> Condition:
    """The condition for `read_chunk` and `boundaries`, which holds where the text holds.

    Args:
        text: a boolean expression in PostgreSQL's SQL, as after WHERE.
        table: ``schema.table``; columns may be qualified with either or both.
        types: SQL name of each column's type, that of a domain's base, as `format_type` has it.

    Raises:
        RefusedError: ``bad-condition``: it cannot be read or is no condition;
            ``unknown-column``; ``condition-not-allowed``: it has what is not allowed here.
    """
    return _built(text, _Builder(table, types))


def check(text: str) -> None:
    """Refuse a text that can be no table's condition; for callers without the table's columns.

    Raises:
        RefusedError: as `rebuilt`, but not for columns.
    """
    _built(text, _Builder("", None))


def _built(text: str, builder: "_Builder") -> Condition:
    root = _tree(text)
    try:
        sql = builder.predicate(root, 0)
    except RecursionError:
        raise too_deep() from None
    return Condition(sql, tuple(builder.parameters))


class _Builder:
    """Writes SQL of a tree and collects its parameters in the order of their places."""

    def __init__(self, table: str, types: Mapping[str, str] | None) -> None:
        self.parameters: list[str] = []
        self._table = table
        self._types = types
        self._predicates: dict[type[exp.Expression], Callable[[exp.Expression, int], str]] = {
            **dict.fromkeys(_JUNCTIONS, self._junction),
            **dict.fromkeys(_COMPARISONS, self._comparison),
            **dict.fromkeys(_LIKES, self._like),
            exp.Escape: self._escape,
            exp.Not: self._not,
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
        }
        self._values: dict[type[exp.Expression], Callable[[exp.Expression, int], str]] = {
            **dict.fromkeys(_ARITHMETIC, self._arithmetic),
            **dict.fromkeys(_FUNCTIONS, self._function),
            exp.Coalesce: self._coalesce,
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Neg: self._negative,
            exp.Cast: self._cast,
            exp.Boolean: self._boolean,
            exp.Null: self._null,
        }

    def predicate(self, node: exp.Expression, depth: int) -> str:
        """Return the SQL of a node that is true, false or null."""
        kind = type(node)
        if kind is exp.Paren:
            return self.predicate(_args(node, "this").this, depth + 1)
        if kind in self._predicates:
            return self._predicates[kind](node, _deeper(depth))
        sql = self.value(node, depth)
        if not self._may_be_boolean(node):
            raise bad("the condition has a value where a comparison is expected")
        return sql

    def value(self, node: exp.Expression, depth: int) -> str:
        """Return the SQL of a node that is compared or computed with.

        A predicate is one only in parentheses: PostgreSQL and the parser do not agree on what binds
        tighter in ``a = b LIKE c = d``.
        """
        kind = type(node)
        if kind is exp.Paren:
            inner = _args(node, "this").this
            if type(inner) in self._predicates:
                return self.predicate(inner, depth + 1)
            return self.value(inner, _deeper(depth))
        if kind in self._predicates:
            raise bad(
                "the condition compares the result of a comparison without parentheses",
                "write (a = b) = c",
            )
        if kind not in self._values:
            raise not_allowed(_name(node), _HINTS.get(kind, HINT))
        return self._values[kind](node, _deeper(depth))

    def _junction(self, node: exp.Expression, depth: int) -> str:
        """Return the SQL of a row of terms, however many: their tree is that deep."""
        kind = type(node)
        terms = []
        while type(node) is kind:
            _args(node, "this", "expression")
            terms.append(node.expression)
            node = node.this
        written = [self.predicate(term, depth) for term in (node, *reversed(terms))]
        return f"({_JUNCTIONS[kind].join(written)})"

    def _not(self, node: exp.Expression, depth: int) -> str:
        return f"(NOT {self.predicate(_args(node, 'this').this, depth)})"

    def _comparison(self, node: exp.Expression, depth: int) -> str:
        self._check_moving(node)
        return self._binary(_COMPARISONS[type(node)], _args(node, "this", "expression"), depth)

    def _arithmetic(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "expression", "typed", "safe")
        return self._binary(_ARITHMETIC[type(node)], node, depth)

    def _binary(self, operator: str, node: exp.Expression, depth: int) -> str:
        left = self.value(node.this, depth)
        return f"({left} {operator} {self.value(node.expression, depth)})"

    def _is(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "expression", "negate")
        test = node.expression
        if type(test) not in (exp.Boolean, exp.Null):
            raise not_allowed("IS with something else than NULL, TRUE or FALSE")
        operand = self.value(node.this, depth)
        if _is_text(node.this) and type(test) is exp.Null:
            operand += "::pg_catalog.text"  # nothing else tells the type of the parameter
        negated = "NOT " if node.args.get("negate") else ""
        return f"({operand} IS {negated}{self.value(test, depth)})"

    def _in(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "expressions")
        if not node.expressions:
            raise bad("the condition has an IN without values")
        self._check_moving(node)
        operand = self.value(node.this, depth)
        return f"({operand} IN ({', '.join(self.value(e, depth) for e in node.expressions)}))"

    def _between(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "low", "high", "symmetric")
        self._check_moving(node)
        symmetric = "SYMMETRIC " if node.args.get("symmetric") else ""
        operand = self.value(node.this, depth)
        low = self.value(node.args["low"], depth)
        return f"({operand} BETWEEN {symmetric}{low} AND {self.value(node.args['high'], depth)})"

    def _like(self, node: exp.Expression, depth: int, escape: str = "\\") -> str:
        _args(node, "this", "expression", "negate")
        pattern = node.expression
        if _is_text(pattern) and escape and _ends_escaping(pattern.name, escape):
            raise bad(
                "a LIKE pattern ends with its escape character",
                "write the escape character twice, or choose another one with ESCAPE",
            )
        negated = "NOT " if node.args.get("negate") else ""
        return self._binary(f"{negated}{_LIKES[type(node)]}", node, depth)

    def _escape(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "expression")
        like, escape = node.this, node.expression
        if type(like) not in _LIKES or not _is_text(escape) or len(escape.name) > 1:
            raise bad("the condition has an ESCAPE that is not one character after a LIKE")
        sql = self._like(like, depth, escape.name)
        return f"({sql.removeprefix('(').removesuffix(')')} ESCAPE {self.value(escape, depth)})"

    def _function(self, node: exp.Expression, depth: int) -> str:
        value = self.value(_args(node, "this").this, depth)
        return f"pg_catalog.{_FUNCTIONS[type(node)]}({value})"

    def _coalesce(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "expressions")
        values = [self.value(one, depth) for one in (node.this, *node.expressions)]
        return f"coalesce({', '.join(values)})"

    def _column(self, node: exp.Expression, _depth: int) -> str:
        _args(node, "this", "table", "db")
        if type(node.this) is not exp.Identifier:
            raise not_allowed("*")
        name = _folded(node.this)
        if self._types is None:
            return escaped(name)
        qualifiers = [_folded(node.args[part]) for part in ("db", "table") if node.args.get(part)]
        schema, table = pair_of(self._table)
        if qualifiers and qualifiers not in ([table], [schema, table]):
            raise not_allowed(
                "a column of another table", f"only columns of {self._table} can be compared"
            )
        if name not in self._types:
            raise _unknown(name, self._table, self._types)
        return escaped(name)

    def _literal(self, node: exp.Expression, _depth: int) -> str:
        if _is_text(node):
            return self._bound(node.name, "")
        return self._number(node.name)

    def _negative(self, node: exp.Expression, depth: int) -> str:
        sign, inner = "", node
        while type(inner) in (exp.Neg, exp.Paren):
            if type(inner) is exp.Neg:
                sign = "" if sign else "-"
            inner = _args(inner, "this").this
        if type(inner) is exp.Literal and not _is_text(inner):
            # As PostgreSQL does: the least number of a type has no positive one.
            return self._number(f"{sign}{inner.name}")
        return f"(- {self.value(node.this, depth)})"

    def _number(self, written: str) -> str:
        if not written.removeprefix("-").isdecimal():
            return self._bound(written, "numeric")
        # Python refuses longer ones; all of them are beyond int8.
        value = int(written) if len(written) <= 20 else _INT8  # noqa: PLR2004
        if -_INT4 <= value < _INT4:
            return self._bound(written, "int4")
        return self._bound(written, "int8" if -_INT8 <= value < _INT8 else "numeric")

    def _bound(self, text: str, kind: str) -> str:
        self.parameters.append(text)
        return f"%s::pg_catalog.{kind}" if kind else "%s"

    def _cast(self, node: exp.Expression, depth: int) -> str:
        _args(node, "this", "to")
        literal = _unwrapped(node.this)
        known = literal.this if type(literal) is exp.Neg else literal
        if type(known) not in (exp.Literal, exp.Boolean, exp.Null):
            raise not_allowed("a cast of something that is no literal", _CASTS_HINT)
        kind = _type(node.args["to"])
        if _is_text(literal) and _OF_TIME.search(kind) and _MOVING.search(literal.name):
            raise _moving()
        return f"{self.value(literal, depth)}::pg_catalog.{kind}"

    def _boolean(self, node: exp.Expression, _depth: int) -> str:
        return "TRUE" if node.this else "FALSE"

    def _null(self, _node: exp.Expression, _depth: int) -> str:
        return "NULL"

    def _may_be_boolean(self, node: exp.Expression) -> bool:
        kind = type(node)
        if kind is exp.Column:
            return self._types is None or self._types[_folded(node.this)] == "boolean"
        if kind is exp.Cast:
            return _type(node.args["to"]) == "bool"
        return kind in (exp.Boolean, exp.Null, exp.Coalesce)

    def _check_moving(self, node: exp.Expression) -> None:
        """Refuse texts such as 'today' beside a time: every chunk would take another day."""
        texts = [one for one in node.find_all(exp.Literal) if _is_text(one)]
        if not any(_MOVING.search(text.name) for text in texts):
            return
        columns = [one for one in node.find_all(exp.Column) if type(one.this) is exp.Identifier]
        kinds = [(self._types or {}).get(_folded(column.this), "") for column in columns]
        kinds += [_type(cast.args["to"]) for cast in node.find_all(exp.Cast)]
        if any(_OF_TIME.search(kind) for kind in kinds):
            raise _moving()


def _args(node: exp.Expression, *known: str) -> exp.Expression:
    """Return the node; refuse it if it has other parts than these."""
    if any(part and name not in known for name, part in node.args.items()):
        raise not_allowed(_name(node))
    return node


def _deeper(depth: int) -> int:
    if depth >= _MAX_TREE:
        raise too_deep()
    return depth + 1


def _unwrapped(node: exp.Expression) -> exp.Expression:
    while type(node) is exp.Paren:
        node = node.this
    return node


def _is_text(node: exp.Expression) -> bool:
    literal = _unwrapped(node)
    return type(literal) is exp.Literal and bool(literal.args.get("is_string"))


def _folded(identifier: exp.Expression) -> str:
    """Return the name that PostgreSQL takes: ASCII letters in lower case unless it is quoted."""
    name: str = identifier.name
    if identifier.args.get("quoted"):
        return name
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _ends_escaping(pattern: str, escape: str) -> bool:
    """Say whether a LIKE pattern ends with an escape character that escapes nothing."""
    at = 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            if at == len(pattern):
                return True
        at += 1
    return False


def _type(node: exp.Expression) -> str:
    """PostgreSQL's name of a plain type, without its schema."""
    allowed = _TYPES.get(node.this) if type(node) is exp.DataType else None
    sizes = [one.name for one in node.expressions]
    plain = all(size.isascii() and size.isdecimal() for size in sizes)
    if allowed is None or node.args.get("nested") or len(sizes) > allowed[1] or not plain:
        raise not_allowed("a cast to another type", _CASTS_HINT)
    if node.this is exp.DType.CHAR and not sizes:
        sizes = ["1"]  # char is char(1)
    return f"{allowed[0]}({', '.join(sizes)})" if sizes else allowed[0]


def _name(node: exp.Expression) -> str:
    """Return the name of a construct for a message."""
    kind = type(node)
    if kind in _NAMES:
        return _NAMES[kind]
    return f"the construct {kind.__name__.upper()}"


def _moving() -> RefusedError:
    return not_allowed(
        "a time that moves (now, today, tomorrow, yesterday)",
        "write the date itself: chunks are read one after the other, and again after a restart",
    )


def _unknown(name: str, table: str, columns: Mapping[str, str]) -> RefusedError:
    """Return the error for an unknown column, without its name: it may be a wrongly quoted text."""
    others = f"texts are in single quotes; its columns are {cut(', '.join(columns))}"
    return RefusedError(
        f"{table} has no such column",
        code="unknown-column",
        hint=nearest(name, columns, others),
    )
