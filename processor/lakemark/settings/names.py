"""Names of tables and topics, and lists of them as Debezium writes them.

Debezium's lists are Java regular expressions, matched in full. They are used twice: as they are by
Kafka's subscription (Java), and translated in `patterns` for the choice of tables.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from lakemark.settings.patterns import is_quick_in_java

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_BMP: Final = 0xFFFF  # Java counts a character above it as two


def topic_safe(name: str) -> str:
    """The name as Debezium writes it into a topic: other characters become ``_``."""
    return _UNSAFE.sub(lambda m: "_" * (2 if ord(m[0]) > _BMP else 1), name)


def quoted(text: str) -> str:
    """The text as a Java regular expression that matches only itself."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda m: "\\" + m[0], text)


def split_list(value: str) -> list[str]:
    r"""Debezium's comma-separated list; ``\,`` is a comma inside an entry."""
    parts = re.findall(r"(?:\\.|[^,\\]|\\$)+", value, re.DOTALL)
    return [part.strip().replace("\\,", ",") for part in parts if part.strip()]


def topic_regex(java: str) -> str | None:
    """The same expression for sanitised names, None where that is not possible for sure.

    A table's name is sanitised in its topic, so a literal such as ``$`` must become ``_``. What
    cannot be rewritten safely (negated classes, look-arounds, classes of odd characters), or what
    Java may match for ever, gives None: the caller then subscribes to more and chooses by the
    record's source block.
    """
    if not is_quick_in_java(java):
        return None
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
