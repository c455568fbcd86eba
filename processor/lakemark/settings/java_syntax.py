r"""The syntax of Java regular expressions: read into a tree of RE2's texts and look-aheads.

The meaning is Java's, without flags: classes such as ``\w`` and letters regarded without case are
those of ASCII, classes may be nested and intersected, a dot is no end of a line. What Java has and
RE2 has not is refused by its name. Time is linear in the length, which is bounded.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from lakemark.settings.character_sets import (
    CLASSES,
    ENDS_OF_LINES,
    LAST,
    POSIX,
    Ranges,
    all_but,
    in_both_cases,
    narrowed,
    written,
)

MAX_LENGTH: Final = 10_000  # characters: an alternation of some hundred names
MAX_DEPTH: Final = 50  # groups in groups, classes in classes
MAX_REPEAT: Final = 1000  # RE2's own
_NAME_DOUBLINGS: Final = 8  # a repetition may end at each of the 249 characters of a topic's name

_CONTROLS: Final = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_ANCHORS: Final = {"A": r"\A", "z": r"\z", "Z": r"\z", "b": r"\b", "B": r"\B"}
_PLAINER: Final = "write it without: as alternatives (a|b), a class [ab] or single names"
_GROUPS: Final = {
    "?<=": "the look-behind (?<=",
    "?<!": "the look-behind (?<!",
    "?>": "the atomic group (?>",
}


class PatternError(ValueError):
    """An expression that cannot be used.

    Attributes:
        code: ``bad-regex``: it is none; ``unsupported-regex``: Java knows it, RE2 does not;
            ``too-large``: it is longer or more complex than is allowed.
        hint: what to write instead.
    """

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint or "a backslash before a character takes its meaning from it"


def malformed(message: str) -> PatternError:
    """Return the error of what is no expression."""
    return PatternError(f"not a regular expression: {message}", code="bad-regex")


def large(message: str) -> PatternError:
    """Return the error of an expression beyond a bound."""
    return PatternError(message, code="too-large", hint="write several shorter ones, or plainer")


def _unsupported(construct: str) -> PatternError:
    return PatternError(f"{construct} is not supported", code="unsupported-regex", hint=_PLAINER)


# -- the tree: what RE2 knows is text already ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Of RE2's syntax.

    Attributes:
        fixed: it stands for exactly one character, or for none.
        doublings: see `doublings`.
    """

    re2: str
    fixed: bool = False
    doublings: float = 0


@dataclass(frozen=True, slots=True)
class LookAhead:
    """A look-ahead."""

    inner: "Group"
    negated: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives, each a sequence."""

    branches: tuple[tuple["Text | LookAhead | Group", ...], ...]


def looks(node: Text | LookAhead | Group) -> bool:
    """Return whether there is a look-ahead in it."""
    if isinstance(node, Group):
        return any(looks(part) for branch in node.branches for part in branch)
    return isinstance(node, LookAhead)


def doublings(node: Text | LookAhead | Group) -> float:
    """Return how often the time of an engine that tries one way after the other may double.

    Each alternative that is tried and each place where a repetition may end is a way; so the time
    for a name is at most two to the power of this, times its length. RE2 tries no ways.
    """
    if isinstance(node, Text):
        return node.doublings
    if isinstance(node, LookAhead):
        return doublings(node.inner)
    return math.log2(len(node.branches)) + max(
        sum(map(doublings, branch)) for branch in node.branches
    )


def text_of(group: Group) -> str:
    """Return alternatives as RE2's text.

    Raises:
        PatternError: there is a look-ahead among them.
    """
    return "|".join("".join(map(piece, branch)) for branch in group.branches)


def piece(node: Text | LookAhead | Group) -> str:
    """Return one part of a sequence as RE2's text; see `text_of`."""
    if isinstance(node, LookAhead):
        raise misplaced(node)
    return node.re2 if isinstance(node, Text) else f"(?:{text_of(node)})"


def misplaced(look: LookAhead) -> PatternError:
    """Return the error of a look-ahead that RE2 cannot replace."""
    sign = "(?!" if look.negated else "(?="
    return PatternError(
        f"the look-ahead {sign} is supported only behind a fixed number of characters",
        code="unsupported-regex",
        hint=r"write it so: public\.(?!tmp_).*; else as alternatives or single names",
    )


@lru_cache(maxsize=512)
def _literal(code: int, ignore_case: bool) -> Text:  # noqa: FBT001 - an argument of a cache
    alone = [(code, code)]
    return Text(written(in_both_cases(alone) if ignore_case else alone), fixed=True)


def parsed(java: str, *, ignore_case: bool) -> Group:
    """Return the tree of an expression.

    Raises:
        PatternError: it is no regular expression, too large, or has what RE2 has not.
    """
    if len(java) > MAX_LENGTH:
        raise large(f"a regular expression is longer than {MAX_LENGTH:,} characters")
    return _Parser(java, ignore_case=ignore_case).parsed()


def _repeated_doublings(atom: Text | LookAhead | Group, quantifier: str) -> float:
    """Return the doublings of a repetition; what has ways in each of its rounds has no bound."""
    inner = doublings(atom)
    if quantifier == "?":
        return inner + 1
    return _NAME_DOUBLINGS if inner == 0 else math.inf


# -- Java's syntax ------------------------------------------------------------------------------


class _Parser:
    """Reads one expression from its beginning to its end, once."""

    def __init__(self, java: str, *, ignore_case: bool) -> None:
        self._java = java
        self._at = 0
        self._flags = {"i": ignore_case, "s": False}
        self._depth = 0
        self._quoted = False
        self._names: set[str] = set()

    def parsed(self) -> Group:
        found = self._alternatives()
        if self._at < len(self._java):
            raise malformed("a ) without its (")
        return found

    # -- characters -----------------------------------------------------------------------------

    def _next(self) -> str:
        return self._java[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at >= len(self._java):
            raise malformed("it ends in the midst of something")
        self._at += 1
        return self._java[self._at - 1]

    def _skip(self, text: str) -> bool:
        if not self._java.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise large(f"a regular expression is nested more than {MAX_DEPTH} deep")

    def _quote(self) -> bool:
        r"""Return whether a \Q begins here, or has begun and has not ended."""
        while self._quoted or self._next() == "\\":
            if self._quoted and self._skip("\\E"):
                self._quoted = False
            elif not self._quoted and self._skip("\\Q"):
                self._quoted = True
            else:
                break
        return self._quoted and self._at < len(self._java)

    # -- sequences ------------------------------------------------------------------------------

    def _alternatives(self) -> Group:
        self._deeper()
        flags = dict(self._flags)
        branches: list[tuple[Text | LookAhead | Group, ...]] = []
        nodes: list[Text | LookAhead | Group] = []
        while (quoted := self._quote()) or (self._next() and self._next() != ")"):
            if not quoted and self._skip("|"):
                branches.append(tuple(nodes))
                nodes = []
                continue
            atom = self._literal(self._take()) if quoted else self._atom()
            if atom is not None:
                nodes.append(self._repeated(atom))
        self._flags = flags
        self._depth -= 1
        return Group((*branches, tuple(nodes)))

    def _atom(self) -> Text | LookAhead | Group | None:
        sign = self._take()
        if sign == "(":
            return self._group()
        if sign in "*+?{":
            raise malformed(f"{sign} without anything before it")
        if sign == "\\" and self._next() in _ANCHORS:
            return Text(_ANCHORS[self._take()], fixed=True)
        if sign in "^$":
            return Text(_ANCHORS["A" if sign == "^" else "z"], fixed=True)
        if sign == "[":
            ranges = self._class()
        elif sign == ".":
            ranges = all_but([] if self._flags["s"] else ENDS_OF_LINES)
        elif sign == "\\":
            ranges = self._cased(self._escape())
        else:
            return self._literal(sign)
        return Text(written(ranges), fixed=True)

    def _literal(self, character: str) -> Text:
        return _literal(ord(character), self._flags["i"])

    def _cased(self, ranges: Ranges) -> Ranges:
        return in_both_cases(ranges) if self._flags["i"] else ranges

    def _repeated(self, atom: Text | LookAhead | Group) -> Text | LookAhead | Group:
        if self._quote():
            return atom
        text = self._quantifier()
        if not text:
            return atom
        if self._next() == "+":
            raise _unsupported(f"the possessive quantifier {text}+")
        self._skip("?")  # which of two ways comes first does not matter to a whole match
        return Text(f"(?:{piece(atom)}){text}", doublings=_repeated_doublings(atom, text))

    def _quantifier(self) -> str:
        if self._next() in {"*", "+", "?"}:
            return self._take()
        if self._next() != "{":
            return ""
        end = self._java.find("}", self._at)
        least, comma, most = self._java[self._at + 1 : max(end, 0)].partition(",")
        if not all(part.isascii() and part.isdigit() for part in (least, most or "0")):
            raise malformed("{ without a number of repetitions")
        self._at = end + 1
        bounds = [int(part) if len(part) < 5 else LAST for part in (least, most) if part]  # noqa: PLR2004
        if bounds != sorted(bounds):
            raise malformed("a repetition whose end is before it")
        if bounds[-1] > MAX_REPEAT:
            raise large(f"a regular expression repeats more than {MAX_REPEAT} times")
        return "{" + str(bounds[0]) + comma + (str(bounds[-1]) if most else "") + "}"

    # -- groups ---------------------------------------------------------------------------------

    def _group(self) -> LookAhead | Group | None:
        for start, name in _GROUPS.items():
            if self._skip(start):
                raise _unsupported(name)
        negated, look = self._skip("?!"), False
        if negated or self._skip("?="):
            look = True
        elif self._skip("?<"):
            name = self._name(">")
            if name in self._names:
                raise malformed("two groups of one name")
            self._names.add(name)
        elif self._skip("?"):
            flags = dict(self._flags)
            if not self._inline_flags():
                return None
            found = self._closed()
            self._flags = flags
            return found
        found = self._closed()
        return LookAhead(found, negated) if look else found

    def _closed(self) -> Group:
        found = self._alternatives()
        if not self._skip(")"):
            raise malformed("a ( without its )")
        return found

    def _inline_flags(self) -> bool:
        """Take ``i-s:`` or ``i)``; return whether a group follows for which alone they hold."""
        value = True
        while (sign := self._take()) not in ":)":
            if sign == "-":
                value = False
            elif sign in self._flags:
                self._flags[sign] = value
            elif sign in "dmuxU":
                raise _unsupported(f"the flag (?{sign})")
            else:
                raise malformed(f"(?{sign} is no group")
        return sign == ":"

    def _name(self, end: str) -> str:
        start = self._at
        while (sign := self._take()) != end:
            if not (sign.isascii() and sign.isalnum()):
                raise malformed("a group with an odd name")
        return self._java[start : self._at - 1]

    # -- classes --------------------------------------------------------------------------------

    def _class(self) -> Ranges:
        """Return the characters of a class whose [ has been taken; && intersects."""
        self._deeper()
        negated = self._skip("^")
        found: Ranges | None = None
        part: Ranges = []
        begun = False
        while (quoted := self._quote()) or not (self._next() == "]" and begun):
            if not quoted and self._skip("&&"):
                found, part = narrowed(found, part), []
                continue
            if not quoted and self._skip("["):
                part = [*part, *self._class()]
            else:
                part = [*part, *self._cased(self._member(quoted=quoted))]
            begun = True
        self._take()
        self._depth -= 1
        ranges = narrowed(found, part)
        return all_but(ranges) if negated else ranges

    def _member(self, *, quoted: bool) -> Ranges:
        """Return a character, a range, or what an escape stands for."""
        low = self._one(quoted=quoted)
        if quoted or len(low) != 1 or low[0][0] != low[0][1] or self._next() != "-":
            return low
        if self._java[self._at + 1 : self._at + 2] in {"]", "["}:
            return low  # the - stands for itself
        self._take()
        high = self._one(quoted=False)
        if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
            raise malformed("a range whose end is before it")
        return [(low[0][0], high[0][0])]

    def _one(self, *, quoted: bool) -> Ranges:
        sign = self._take()
        return [(ord(sign), ord(sign))] if quoted or sign != "\\" else self._escape()

    def _escape(self) -> Ranges:
        """Return the characters that an escape stands for, its backslash taken."""
        sign = self._take()
        if sign.lower() in CLASSES:
            ranges = CLASSES[sign.lower()]
            return ranges if sign.islower() else all_but(ranges)
        if sign in "pP":
            ranges = self._posix()
            return ranges if sign == "p" else all_but(ranges)
        if sign in _CONTROLS:
            return [(_CONTROLS[sign], _CONTROLS[sign])]
        if sign in "0xu":
            code = self._code(sign)
            return [(code, code)]
        if sign == "c":
            code = ord(self._take()) ^ 64
            return [(code, code)]
        if sign == "k":
            self._skip("<")
            raise _unsupported(f"the back-reference \\k<{self._name('>')}>")
        if sign.isascii() and sign.isdigit():
            raise _unsupported(f"the back-reference \\{sign}")
        if sign.isascii() and sign.isalpha():
            raise _unsupported(f"\\{sign}")
        return [(ord(sign), ord(sign))]

    def _posix(self) -> Ranges:
        name = self._name("}") if self._skip("{") else self._take()
        if name not in POSIX:
            raise _unsupported(f"\\p{{{name[:30]}}}")
        return in_both_cases(POSIX[name]) if self._flags["i"] else POSIX[name]

    def _code(self, sign: str) -> int:
        r"""Return the code point of \0n, \xhh, \x{h..} or \uhhhh."""
        if sign == "0":
            digits = ""
            while len(digits) < (3 if digits[:1] in {"", "0", "1", "2", "3"} else 2) and (
                self._next() in set("01234567")
            ):
                digits += self._take()
            base = 8
        elif sign == "x" and self._skip("{"):
            digits, base = self._name("}"), 16
        else:
            width = 2 if sign == "x" else 4
            digits, base = self._java[self._at : self._at + width], 16
            self._at += len(digits)
            if len(digits) < width:
                _no_code(sign)
        try:
            code = int(digits, base) if digits.isalnum() and len(digits) <= 8 else -1  # noqa: PLR2004
        except ValueError:
            code = -1
        if not 0 <= code <= LAST:
            _no_code(sign)
        return code


def _no_code(sign: str) -> NoReturn:
    raise malformed(f"\\{sign} without the code of a character")
