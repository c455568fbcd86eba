"""Names that a terminal, a log or a page might obey, and whether a text is one that none does."""

from typing import Final

HOSTILE: Final = (
    # commands of a terminal, in one character too; a line of its own; an end of the text
    "public.a\x1b[2J\x1b]0;t\x07\x9b31m\r\x08\x7f\x00\x85\n level=info event=forged",
    # marks that turn the direction, breaks of lines, what is not seen
    "public.\u202egnpexe\u202c\u2066a\u2069\u200e\u200f\u061c\u2028\u2029\ufeff\u200b\U000e0041",
    "public.[red]a[/red][/][link=http://evil]b[/link]:smile:",
    "public.a/b%2Fc?d#e&f=g h\u00e9\U0001f600\u0416",  # the last ones are letters
)
HALF: Final = "public.a\ud800b"
"""Half of a character: no file and no terminal can take it."""


def is_harmless(text: str) -> bool:
    """Whether a terminal shows all of it and obeys none; line breaks and tabs are the text's."""
    return all(c.isprintable() or c in "\n\t" for c in text)
