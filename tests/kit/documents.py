"""Parts of Markdown pages: code blocks by language, commands, links, headings, tables."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "decisions").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    +(\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced piece of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        """Name of a test."""
        return f"{self.page.name}: {self.text.strip().splitlines()[0][:50]}"


def name_of(page: Path) -> str:
    """Name of a test."""
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str) -> list[Block]:
    """All fenced blocks of these languages."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def _blocks(page: Path) -> Iterator[Block]:
    for indent, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        yield Block(page, language, textwrap.dedent(text) if indent else text)


def commands(page: Path) -> Iterator[list[str]]:
    """Arguments of every `lakemark …`, as blocks, indented lines and inline code have them."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in _blocks(page) for line in block.text.splitlines()]
    plain = _FENCE.sub("", text)
    lines += _INDENTED.findall(plain) + _INLINE.findall(plain)
    for line in lines:
        words = _words(line.strip().removeprefix("$ ").replace("\\|", "|"))
        if words[:1] == ["lakemark"] and not any(re.fullmatch(r"[|>&]+", w) for w in words[1:2]):
            yield words[1:]


def typed(page: Path, beginning: str) -> list[str]:
    """The indented lines of a page that begin like this, in its order."""
    plain = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [line for line in _INDENTED.findall(plain) if line.startswith(beginning)]


def _words(line: str) -> list[str]:
    if not line.startswith("lakemark "):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if re.fullmatch(r"[|>;&]+", word):
            break
        words.append(word.strip("[]…"))
    return [word for word in words if word]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Relative links: the path, empty for this page, and the heading."""
    text = _INLINE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in _LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, heading = target.partition("#")
            yield path, heading


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(text)
    }


def first_cells(page: Path) -> list[str]:
    """The code that rows of the page's tables begin with, row by row."""
    return re.findall(r"^\| `([^`\n]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
