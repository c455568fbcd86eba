"""Conditions: a filter that a user wrote, parsed and built anew for a chunk's SELECT.

Nothing of the text is pasted into a statement. Allowed are boolean expressions over the table's own
columns: comparisons (also ``<=>``), AND, OR, NOT, IN lists, BETWEEN, LIKE, IS [NOT] NULL, TRUE,
FALSE, and parentheses. Every literal is a parameter: a text as a text, a number as a number; how it
compares with its column is the server's to say. A time is written as a text, in UTC as the reader's
session is. Functions, arithmetic, casts and subqueries are not allowed: what changes from one chunk
to the next, or takes long, would be among them, and a comparison of a column uses an index.

Pure, and nothing but `RefusedError` is raised, which never shows a literal.
"""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from lakemark.connectors.mysql.key_sql import escaped
from lakemark.errors import RefusedError, cut, nearest
from lakemark.model.key_ranges import Condition
from lakemark.settings.table_id import pair_of

HINT: Final = "write it as after WHERE, such as: status = 'open' AND id BETWEEN 1 AND 9"
_DIALECT: Final = Dialect.get_or_raise("mysql")
_MOST: Final = 10_000  # characters
_DEEPEST: Final = 100
_COMPARISONS: Final[Mapping[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Like: "LIKE",
}
_JUNCTIONS: Final[Mapping[type[exp.Expression], str]] = {exp.And: " AND ", exp.Or: " OR "}


def rebuilt(text: str, *, table: str, columns: Collection[str]) -> Condition:
    """Return the condition for chunks, which holds where the text holds.

    Args:
        text: a boolean expression in MariaDB's SQL, as after WHERE.
        table: its text; columns may be qualified with its name, and its database's.
        columns: of the table.

    Raises:
        RefusedError: ``bad-condition``: it cannot be read or is no condition;
            ``unknown-column``; ``condition-not-allowed``: it has what is not allowed here.
    """
    return _built(text, _Builder(pair_of(table), columns))


def check(text: str) -> None:
    """Refuse a text that can be no table's condition; for callers without the table's columns.

    Raises:
        RefusedError: as `rebuilt`, but not for columns.
    """
    _built(text, _Builder(None, None))


def _built(text: str, builder: "_Builder") -> Condition:
    try:
        sql = builder.predicate(_tree(text), 0)
    except RecursionError:
        raise _bad("the filter is nested too deeply") from None
    return Condition(f"({sql})", tuple(builder.values))


def _tree(text: str) -> exp.Expression:
    if not text.strip():
        raise _bad("the filter is empty")
    if len(text) > _MOST:
        raise _bad(f"the filter has {len(text):,} characters, at most {_MOST:,} are taken")
    try:
        # Into a condition: a statement would be looked for otherwise, and shown in a log.
        found = _DIALECT.parser().parse_into(exp.Condition, _DIALECT.tokenize(text), text)
    except Exception:  # noqa: BLE001 - whatever the parser stumbles over, its user is told
        raise _bad("the filter cannot be read") from None
    if len(found) != 1 or not isinstance(found[0], exp.Expression):
        raise _bad("the filter is no single condition")
    return found[0]


class _Builder:
    """SQL with placeholders, and the values for them in their order.

    `columns`: None where they are not known: then any name is one.
    """

    def __init__(self, table: tuple[str, str] | None, columns: Collection[str] | None) -> None:
        self._table, self._columns = table, columns
        # Names of columns are the same in any case there.
        self._by_name = {name.lower(): name for name in columns or ()}
        self.values: list[Any] = []

    def predicate(self, node: exp.Expression, depth: int) -> str:
        """Return the SQL of what is true or false."""
        if depth > _DEEPEST:
            raise _bad("the filter is nested too deeply")
        kind, deeper = type(node), depth + 1
        if kind is exp.Paren:
            return f"({self.predicate(_only(node).this, deeper)})"
        if kind in _JUNCTIONS:
            return self._junction(node, kind, depth)
        if kind is exp.Not:
            return f"(NOT {self.predicate(_only(node).this, deeper)})"
        if kind is exp.Boolean:
            return "TRUE" if node.this else "FALSE"
        make = _PREDICATES.get(kind)
        if make is None and kind in _COMPARISONS:
            _only(node, "this", "expression", "negate")
            word = f"{'NOT ' if node.args.get('negate') else ''}{_COMPARISONS[kind]}"
            return f"({self._operand(node.this)} {word} {self._operand(node.expression)})"
        if make is None:
            raise _not_allowed(node)
        return make(self, node)

    def _junction(self, node: exp.Expression, kind: type[exp.Expression], depth: int) -> str:
        """Return a row of ANDs or ORs, which the parser nests to the left, without recursion."""
        parts: list[exp.Expression] = []
        while type(node) is kind:
            parts.append(_only(node).expression)
            node = node.this
        parts.append(node)
        found = [self.predicate(part, depth + 1) for part in reversed(parts)]
        return f"({_JUNCTIONS[kind].join(found)})"

    def is_null(self, node: exp.Expression) -> str:
        """Return the SQL of IS NULL, IS TRUE and IS FALSE."""
        what = _only(node).expression
        if type(what) is exp.Null:
            word = "NULL"
        elif type(what) is exp.Boolean:
            word = "TRUE" if what.this else "FALSE"
        else:
            raise _not_allowed(node)
        return f"({self._operand(node.this)} IS {word})"

    def within(self, node: exp.Expression) -> str:
        """Return the SQL of IN."""
        values = _only(node, "this", "expressions").expressions
        if not values:
            raise _not_allowed(node)
        column = self._operand(node.this)
        return f"({column} IN ({', '.join(map(self._literal, values))}))"

    def between(self, node: exp.Expression) -> str:
        """Return the SQL of BETWEEN."""
        _only(node, "this", "low", "high")
        ends = (self._operand(node.this), *(self._literal(node.args[n]) for n in ("low", "high")))
        return f"({ends[0]} BETWEEN {ends[1]} AND {ends[2]})"

    def column(self, node: exp.Expression) -> str:
        """Return a column's name, quoted."""
        _only(node, "this", "table", "db")
        given = [node.args[part].name for part in ("db", "table") if node.args.get(part)]
        if type(node.this) is not exp.Identifier:
            raise _not_allowed(node)
        if self._table is not None and given and list(self._table)[-len(given) :] != given:
            raise self._unknown(node.name)
        if self._columns is None:
            return escaped(node.name)
        name = self._by_name.get(node.name.lower())
        if name is None:
            raise self._unknown(node.name)
        return escaped(name)

    def _operand(self, node: exp.Expression) -> str:
        while type(node) is exp.Paren:
            node = _only(node).this
        return self.column(node) if type(node) is exp.Column else self._literal(node)

    def _literal(self, node: exp.Expression) -> str:
        sign = 1
        while type(node) in {exp.Neg, exp.Paren}:
            sign, node = (-sign if type(node) is exp.Neg else sign), _only(node).this
        if type(node) is exp.Null:
            return "NULL"
        if type(node) is exp.Boolean:
            return "TRUE" if node.this else "FALSE"
        if type(node) is not exp.Literal:
            raise _not_allowed(node)
        if node.is_string:
            self.values.append(node.name)
        else:
            self.values.append(_number(node.name) * sign)
        return "%s"

    def _unknown(self, name: str) -> RefusedError:
        """Return the error without the name as it was written: it may be a wrongly quoted text."""
        names = ", ".join(self._by_name.values())
        return RefusedError(
            f"{'.'.join(self._table or ())} has no such column",
            code="unknown-column",
            hint=nearest(name, self._by_name.values(), f"its columns are {cut(names)}"),
        )


_PREDICATES: Final[Mapping[type[exp.Expression], Callable[[_Builder, exp.Expression], str]]] = {
    exp.Is: _Builder.is_null,
    exp.In: _Builder.within,
    exp.Between: _Builder.between,
    exp.Column: _Builder.column,
}


def _number(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return Decimal(text)
    except ArithmeticError:
        raise _bad("the filter has a number that cannot be read") from None


def _only(node: exp.Expression, *known: str) -> exp.Expression:
    """Return the node; refuse it if it has other parts than these, or than its operands."""
    allowed = known or ("this", "expression")
    if any(part for name, part in node.args.items() if name not in allowed):
        raise _not_allowed(node)
    return node


def _bad(message: str) -> RefusedError:
    return RefusedError(message, code="bad-condition", hint=HINT)


def _not_allowed(node: exp.Expression) -> RefusedError:
    return RefusedError(
        f"the filter has what is not allowed: {type(node).__name__.upper()}",
        code="condition-not-allowed",
        hint="columns are compared with literals, joined by AND, OR and NOT",
    )
