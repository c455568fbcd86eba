"""Names of tables and topics, and the Java regular expressions that choose them.

Debezium's lists are Java regular expressions, matched in full. They are used twice: as they are by
Kafka's subscription (Java), and translated here for the choice of tables (Python).
"""

import re
from dataclasses import dataclass
from typing import Final, Self

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_BMP: Final = 0xFFFF  # Java counts a character above it as two
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
}
# One piece: \Q..\E, \p{..}, \k<..>, any escape, (?<name>, &&, any character.
_PIECE: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)|\\p\{(?:Is)?(?P<posix>\w+)\}|\\k<(?P<back>\w+)>"
    r"|\\(?P<escape>.)|\(\?<(?P<group>[A-Za-z]\w*)>|(?P<class>&&)|(?P<other>.)",
    re.DOTALL,
)
_SAME_IN_PYTHON: Final = frozenset("dDsSwWbBAtnrfv0123456789")


def topic_safe(name: str) -> str:
    """The name as Debezium writes it into a topic: other characters become ``_``."""
    return _UNSAFE.sub(lambda m: "_" * (2 if ord(m[0]) > _BMP else 1), name)


def quoted(text: str) -> str:
    """The text as a Java regular expression that matches only itself."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda m: "\\" + m[0], text)


def problem_with_regex(java: str) -> str:
    """What is wrong with a Java regular expression, empty when nothing is."""
    try:
        compile_java(java)
    except ValueError as error:
        return str(error)
    return ""


def compile_java(java: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """A Java regular expression for use with ``fullmatch``.

    Raises:
        ValueError: it is no regular expression, or uses what only Java has.
    """
    flags = re.ASCII | (re.IGNORECASE if ignore_case else 0)
    try:
        return re.compile(_to_python(java), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error


def _to_python(java: str) -> str:
    out: list[str] = []
    for piece in _PIECE.finditer(java):
        kind, text = piece.lastgroup, piece[0]
        if kind == "quoted":
            out.append(re.escape(piece["quoted"]))
        elif kind == "posix":
            if piece["posix"] not in _POSIX:
                raise ValueError(f"{text} is not supported here; write the characters as a class")
            inside = out and _in_class("".join(out))
            out.append(_POSIX[piece["posix"]] if inside else f"[{_POSIX[piece['posix']]}]")
        elif kind == "back":
            out.append(f"(?P={piece['back']})")
        elif kind == "group":
            out.append(f"(?P<{piece['group']}>")
        elif kind == "class" and _in_class("".join(out)):
            raise ValueError("the class intersection && is not supported here; write one class")
        elif kind == "escape":
            out.append(_escape(piece["escape"]))
        else:
            out.append(text)
    return "".join(out)


def _escape(character: str) -> str:
    if character in {"z", "Z"}:
        return r"\Z"
    if not character.isascii():
        return character
    if character.isalnum() and character not in _SAME_IN_PYTHON:
        raise ValueError(f"\\{character} is not supported here")
    return "\\" + character


def _in_class(python: str) -> bool:
    """Whether a class is open at the end of this translated text."""
    is_open = False
    for piece in re.finditer(r"\\.|\[|\]", python, re.DOTALL):
        if piece[0] == "[":
            is_open = True
        elif piece[0] == "]":
            is_open = False
    return is_open


def split_list(value: str) -> list[str]:
    r"""Debezium's comma-separated list; ``\,`` is a comma inside an entry."""
    parts = re.findall(r"(?:\\.|[^,\\]|\\$)+", value, re.DOTALL)
    return [part.strip().replace("\\,", ",") for part in parts if part.strip()]


def table_name(written: str) -> str:
    """``schema.table`` as Debezium reads it: each part may stand in double quotes."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^."]+)', written.strip())
    return ".".join(quoted_.replace('""', '"') or plain.strip() for quoted_, plain in parts)


def topic_regex(java: str) -> str | None:
    """The same expression for sanitised names, None where that is not possible for sure.

    A table's name is sanitised in its topic, so a literal such as ``$`` must become ``_``. What
    cannot be rewritten safely (negated classes, look-arounds, classes of odd characters) gives
    None: the caller then subscribes to more and chooses by the record's source block.
    """
    safe = re.compile(
        r"\\(?P<escape>[^A-Za-z0-9])|(?P<class>\[[A-Za-z0-9_.-]+\])|(?P<group>\((?:\?:|(?!\?))|\))"
        r"|(?P<op>[|.*+?]|\{\d+(?:,\d*)?\})|(?P<digit>\\[dw])|(?P<plain>[^\\\[\](){}^$|*+?.])",
    )
    out: list[str] = []
    end = 0
    for piece in safe.finditer(java):
        if piece.start() != end:
            return None
        end = piece.end()
        kind = piece.lastgroup
        if kind in {"escape", "plain"}:
            character = piece["escape"] or piece["plain"]
            out.append(quoted(topic_safe(character)))
        else:
            out.append(piece[0])
    return "".join(out) if end == len(java) else None


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """Names of lakemark's own topics."""

    signals: str
    notifications: str
    chunks: str
    control: str
    progress: str
    dead_letters: str

    @classmethod
    def of(cls, name: str) -> Self:
        """The topics of the pipeline of this name."""
        return cls(
            signals=f"{name}.signals",
            notifications=f"{name}.notifications",
            chunks=f"{name}.chunks",
            control=f"{name}.control",
            progress=f"{name}.progress",
            dead_letters=f"{name}.dead-letters",
        )

    def all(self) -> tuple[str, ...]:
        """All of them, in the order of the class."""
        return (
            self.signals,
            self.notifications,
            self.chunks,
            self.control,
            self.progress,
            self.dead_letters,
        )
