r"""Java regular expressions of users, translated for RE2 and matched in linear time.

Debezium's lists, settings and signals choose tables, columns and topics by Java expressions that
match a whole name. An engine that tries one way after the other, as Java's and Python's do, takes
for ever for some of them. RE2 does not: its time is that of the pattern times that of the text, and
its memory is bounded. So this module is the only one that compiles an expression of a user.

Look-aheads are not in RE2. Those of the usual form stand behind characters whose
number is fixed, such as ``public\.(?!tmp_).*``: they become a second expression that must match
too, or must not. Whatever else Java has is refused by its name: `PatternError`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

from lakemark.settings.java_syntax import (
    Group,
    LookAhead,
    PatternError,
    Text,
    doublings,
    large,
    looks,
    malformed,
    misplaced,
    parsed,
    piece,
    text_of,
)

MAX_LOOKAHEADS: Final = 20
MAX_DOUBLINGS: Final = 26  # three repetitions in a row, and one of four alternatives
MAX_MEMORY: Final = 1 << 20  # bytes of RE2 for one expression; a name of a table takes some 5,000


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """A compiled expression; it travels to other processes as its text.

    Attributes:
        java: as the user wrote it.
        ignore_case: whether ASCII letters count without regard to case.
        cost: instructions of RE2: a match takes at most so many steps for each byte of the text.
    """

    java: str
    ignore_case: bool
    cost: int
    _branches: tuple["_Branch", ...] = field(repr=False, compare=False)

    def matches(self, text: str) -> bool:
        """Return whether the expression matches the whole text, as `Matcher.matches` does."""
        blob = text.encode("utf-8", "surrogatepass")
        return any(branch.matches(blob) for branch in self._branches)

    def __reduce__(self) -> tuple[Any, ...]:
        return _compiled, (self.java, self.ignore_case)


@dataclass(frozen=True, slots=True)
class _Branch:
    """One alternative: what must match, and by look-aheads what must as well and what must not."""

    wanted: Any
    ahead: tuple[Any, ...]
    unwanted: tuple[Any, ...]

    def matches(self, blob: bytes) -> bool:
        return (
            self.wanted.fullmatch(blob) is not None
            and all(one.fullmatch(blob) is not None for one in self.ahead)
            and not any(one.fullmatch(blob) is not None for one in self.unwanted)
        )


def compile_java(java: str, *, ignore_case: bool = False) -> JavaPattern:
    """Return a Java regular expression for use with `JavaPattern.matches`.

    Raises:
        PatternError: it is no regular expression, too large, or has what only Java has.
    """
    return _compiled(java, ignore_case)


def problem_with_regex(java: str) -> str:
    """Return what is wrong with a Java regular expression, empty when nothing is."""
    try:
        compile_java(java)
    except PatternError as error:
        return f"{error}; {error.hint}"
    return ""


def is_quick_in_java(java: str) -> bool:
    """Return whether Java, which tries one way after the other, matches names with it in no time.

    It need not hold for what `compile_java` takes: ``(a|aa)+b`` takes Java for ever.

    Raises:
        PatternError: see `compile_java`.
    """
    return doublings(parsed(java, ignore_case=False)) <= MAX_DOUBLINGS


@lru_cache(maxsize=256)
def _compiled(java: str, ignore_case: bool) -> JavaPattern:  # noqa: FBT001 - an argument of a cache
    tree = parsed(java, ignore_case=ignore_case)
    texts = [_BranchText(text_of(tree))] if not looks(tree) else list(_split(tree))
    if sum(len(one.ahead) + len(one.unwanted) for one in texts) > MAX_LOOKAHEADS:
        raise large(f"a regular expression has more than {MAX_LOOKAHEADS} look-aheads")
    branches = tuple(
        _Branch(_re2(one.wanted), tuple(map(_re2, one.ahead)), tuple(map(_re2, one.unwanted)))
        for one in texts
    )
    parts = [part for one in branches for part in (one.wanted, *one.ahead, *one.unwanted)]
    return JavaPattern(java, ignore_case, sum(part.programsize for part in parts), branches)


def _re2(text: str) -> Any:
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MAX_MEMORY, False, True
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "RE2 refuses it"
        if any(word in why for word in ("too large", "repetition", "nest")):
            raise large("a regular expression is too complex") from None
        raise malformed(why) from None


@dataclass(frozen=True, slots=True)
class _BranchText:
    wanted: str
    ahead: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


def _split(group: Group) -> Iterator[_BranchText]:
    """Yield what each alternative means, look-aheads taken out.

    What stands before a look-ahead has a fixed number of characters: so there is one place where it
    looks from, and it holds by itself or does not.
    """
    for branch in group.branches:
        before, fixed = "", True
        ahead: list[str] = []
        unwanted: list[str] = []
        rest = [_BranchText("")]
        for at, node in enumerate(branch):
            if isinstance(node, LookAhead):
                if not fixed:
                    raise misplaced(node)
                into = unwanted if node.negated else ahead
                into.append(rf"{before}(?:{text_of(node.inner)})(?s:.*)")
            elif isinstance(node, Group) and looks(node) and fixed and at == len(branch) - 1:
                rest = list(_split(node))
            else:
                fixed = fixed and isinstance(node, Text) and node.fixed
                before += piece(node)
        for one in rest:
            yield _BranchText(
                before + one.wanted,
                (*ahead, *(before + text for text in one.ahead)),
                (*unwanted, *(before + text for text in one.unwanted)),
            )
