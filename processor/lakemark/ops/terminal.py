"""Text as a terminal shows it and does not obey it.

Names of tables, ids of signals and errors of other programs may hold anything: escape sequences,
marks that turn the direction of writing, line breaks that make a line of their own, halves of
characters that cannot be written. Whatever cannot be printed is shown as JSON would escape it.
"""

import json
import re
from typing import Any, Final

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7e]")
_BASIC: Final = 0xFFFF  # beyond it a character takes two of JSON's escapes


def shown(text: str, *, lines: bool = False) -> str:
    """Return the text in one line, or with its line breaks and tabs."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else _escaped(c) for c in text)


def shown_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON for programs and for people: readable letters stay as they are."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _NOT_ASCII.sub(lambda m: m[0] if m[0].isprintable() else _in_json(m[0]), text)


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number <= _BASIC else f"\\U{number:08x}"


def _in_json(character: str) -> str:
    return json.dumps(character)[1:-1]
