"""The text of a condition: tokens that are refused before it is parsed, and its syntax tree.

The parser reads many dialects and all of SQL, so its tree alone does not tell whether PostgreSQL
would have read the same. Text that they could read differently is refused by its tokens: comments,
other forms of literals, other operators, blanks that are none in PostgreSQL. So is text that would
keep the parser busy or make the tree deep.
"""

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from lakemark.errors import RefusedError, cut

MAX_LENGTH: Final = 65_536  # characters; the parser takes two seconds for the worst of them
# Each is a parameter; PostgreSQL takes 65,535, and a condition stands up to three times in a query.
MAX_LITERALS: Final = 20_000
# Parentheses in parentheses, NOT or signs in a row. Of both the parser bears about 40.
MAX_DEPTH: Final = 20

HINT: Final = (
    "compare columns of the table with literals: =, <>, <, >, IN, BETWEEN, LIKE, IS NULL;"
    " AND, OR, NOT and parentheses combine them"
)
_ONLY_WHERE: Final = "write only what would stand after WHERE, such as status = 'open'"

_BLANKS: Final = " \t\n\r\f\v"
_NUMBER: Final = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)
_WORD: Final = re.compile(r"[^\W\d][\w$]*([ \t\n\r\f\v]+[^\W\d]\w*)*")
_OPERATORS: Final = {
    *("=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "(", ")", ",", ".", "::"),
}
_PREFIXES: Final = {TokenType.NOT, TokenType.DASH, TokenType.PLUS}
# Words that may stand before a parenthesis. Types take numbers only: the parser tries each of
# nested ones in two ways, so twenty keep it busy for a minute.
_FUNCTIONS: Final = {"lower", "upper", "abs", "coalesce", "cast"}
_BEFORE_PARENTHESIS: Final = {
    *_FUNCTIONS,
    *("and", "or", "not", "in", "between", "like", "ilike", "escape", "from", "symmetric"),
}
_SIZED_TYPES: Final = {
    *("numeric", "decimal", "varchar", "varying", "char", "character", "bpchar"),
    *("timestamp", "timestamptz", "time", "timetz"),
}
# PostgreSQL takes these words for calls, other programs for names.
_CALLS: Final = {
    *("current_catalog", "current_date", "current_role", "current_schema", "current_time"),
    *("current_timestamp", "current_user", "localtime", "localtimestamp", "session_user"),
    *("system_user", "user"),
}
_INSTEAD: Final = dict.fromkeys(("any", "some"), "write IN (...)") | {
    "now": "write the time itself: chunks are read one after the other, and again after a restart",
}
_LITERALS: Final = {TokenType.STRING, TokenType.NUMBER}
_FOREIGN: Final = {
    TokenType.SEMICOLON: "a semicolon",
    TokenType.PARAMETER: "a parameter",
    TokenType.PLACEHOLDER: "a parameter",
    TokenType.COLON: "a parameter",
    TokenType.L_BRACKET: "an array or a subscript",
    TokenType.HEREDOC_STRING: "a text in dollar signs",
    TokenType.RAW_STRING: "a text in dollar signs",
    TokenType.BYTE_STRING: "a text with a prefix",
    TokenType.BIT_STRING: "a text with a prefix",
    TokenType.HEX_STRING: "a hexadecimal literal",
    TokenType.NATIONAL_STRING: "a text with a prefix",
    TokenType.UNICODE_STRING: "a text with a prefix",
}
_dialect: Final = Postgres()


def tree(text: str) -> exp.Expression:
    """The syntax tree of a condition, built of tokens that mean the same to PostgreSQL.

    Raises:
        RefusedError: ``bad-condition``, ``condition-not-allowed``. Never anything else.
    """
    if len(text) > MAX_LENGTH:
        raise bad(
            f"the condition is longer than {MAX_LENGTH} characters",
            "name single rows in keys, or send several signals",
        )
    tokens = _tokens(text)
    if not tokens:
        raise bad("the condition is empty", _ONLY_WHERE)
    _check_blanks(text, tokens)
    for at, token in enumerate(tokens):
        _check(tokens, at, text[token.start : token.end + 1])
    _check_depth(tokens)
    return _parsed(text, tokens)


def bad(message: str, hint: str = HINT) -> RefusedError:
    """Return the error for a text that is no condition."""
    return RefusedError(message, code="bad-condition", hint=hint)


def not_allowed(construct: str, hint: str = HINT) -> RefusedError:
    """Return the error for a condition with a part that is not allowed here."""
    return RefusedError(
        f"the condition has {construct}, which is not allowed",
        code="condition-not-allowed",
        hint=hint,
    )


def _tokens(text: str) -> list[Token]:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise bad("the condition has a character that no text in PostgreSQL can have")
    try:
        return list(_dialect.tokenize(text))
    except TokenError:
        raise bad(
            "the condition has a quote or a comment that is not closed",
            "a quote inside a text is written twice: 'it''s'",
        ) from None
    except Exception:  # noqa: BLE001 (whatever the tokenizer stumbles over, its user is told)
        _unreadable()


def _unreadable() -> NoReturn:
    raise bad(
        "the condition cannot be read",
        "write it as after WHERE in PostgreSQL; names that are also words of SQL, in double quotes",
    ) from None


def _check_blanks(text: str, tokens: Sequence[Token]) -> None:
    """Refuse comments, and all else that the tokenizer has passed over."""
    starts = [token.start for token in tokens]
    ends = [token.end + 1 for token in tokens]
    for end, start in zip([0, *ends], [*starts, len(text)], strict=True):
        if passed := text[end:start].strip(_BLANKS):
            if passed.startswith(("--", "/*")):
                raise not_allowed("a comment")
            raise bad("the condition has a blank or a sign that is none in PostgreSQL")


def _check(tokens: Sequence[Token], at: int, written: str) -> None:
    token = tokens[at]
    if token.token_type == TokenType.STRING and written.startswith("'"):
        return
    if token.token_type == TokenType.IDENTIFIER and written.startswith('"'):
        if _is(tokens, at + 1, TokenType.L_PAREN):
            raise not_allowed("a function")
        return
    if token.token_type == TokenType.NUMBER:
        if not _NUMBER.fullmatch(written):
            raise bad("the condition has a number that cannot be read")
        return
    if token.token_type in _FOREIGN:
        raise not_allowed(_FOREIGN[token.token_type], _hint_for(token))
    if _WORD.fullmatch(written):
        _check_word(tokens, at, written.lower())
    elif written not in _OPERATORS:
        raise not_allowed("another operator")


def _hint_for(token: Token) -> str:
    return _ONLY_WHERE if token.token_type == TokenType.SEMICOLON else HINT


def _check_word(tokens: Sequence[Token], at: int, word: str) -> None:
    after_dot = at > 0 and _is(tokens, at - 1, TokenType.DOT)
    if not after_dot:
        if word in {"select", "where"}:
            raise not_allowed(word.upper(), _ONLY_WHERE)
        if word in _CALLS:
            raise not_allowed(f"the function {word}", f'a column of this name is written "{word}"')
    if _is(tokens, at + 1, TokenType.L_PAREN):
        last = word.rsplit(maxsplit=1)[-1]
        sized = last in _SIZED_TYPES and _has_numbers(tokens, at + 2)
        if after_dot or (last not in _BEFORE_PARENTHESIS and not sized):
            raise not_allowed(f"the function {cut(word)}", _INSTEAD.get(word, HINT))


def _has_numbers(tokens: Sequence[Token], at: int) -> bool:
    """Say whether one or two numbers and a closing parenthesis stand here."""
    kinds = [token.token_type for token in tokens[at : at + 4]]
    one = [TokenType.NUMBER, TokenType.R_PAREN]
    return kinds[:2] == one or kinds == [TokenType.NUMBER, TokenType.COMMA, *one]


def _is(tokens: Sequence[Token], at: int, kind: TokenType) -> bool:
    return at < len(tokens) and tokens[at].token_type == kind


def _check_depth(tokens: Sequence[Token]) -> None:
    opened = prefixes = 0
    for token in tokens:
        opened += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        prefixes = prefixes + 1 if token.token_type in _PREFIXES else 0
        if opened + prefixes > MAX_DEPTH:
            raise too_deep()
    if sum(token.token_type in _LITERALS for token in tokens) > MAX_LITERALS:
        raise bad(
            f"the condition has more than {MAX_LITERALS} literals",
            "name single rows in keys, or send several signals",
        )


def too_deep() -> RefusedError:
    """Return the error for a condition that is nested too deeply."""
    return bad("the condition is nested too deeply", "write it with fewer parentheses")


def _parsed(text: str, tokens: list[Token]) -> exp.Expression:
    try:
        # Into a condition: a statement would be looked for otherwise, and shown in a log.
        expressions = _dialect.parser().parse_into(exp.Condition, tokens, text)
    except RecursionError:
        raise too_deep() from None
    except Exception:  # noqa: BLE001 (whatever the parser stumbles over, its user is told)
        _unreadable()
    if len(expressions) != 1 or not isinstance(expressions[0], exp.Expression):
        _unreadable()
    return expressions[0]
