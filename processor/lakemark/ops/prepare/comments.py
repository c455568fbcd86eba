"""Comments in scripts: a text can break no line, and so begin no statement. Pure."""

import textwrap
from typing import Final

_WIDTH: Final = 100


def comment(mark: str, text: str) -> str:
    """Return a text as lines of a comment, whatever characters it has.

    Args:
        mark: begins each line.
        text: one sentence or several.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    lines = textwrap.wrap(plain, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{mark} {line}" for line in lines)
