"""The words of one database, and of one form of records, stand in its own folder.

A second one touches nothing else. What counts is code: names and texts, not comments and docstrings,
where PostgreSQL or JSON is an example.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.sources import parsed

PACKAGE = Path(__file__).parents[3] / "processor" / "lakemark"

# A slot without such a word beside it is a task's: a place for tables.
POSTGRES = re.compile(
    r"postgres|psycopg|pgoutput|(^|[^a-z])pg_|(^|[^a-z])lsns?([^a-z]|$)|replica.identity|publication"
    r"|toast|replication.slot|(the|its|a) slot|slot[._](name|drop|active|distance|present|gone)",
    re.IGNORECASE,
)
JSON_CONVERTER = re.compile(
    r"schemas?\.enable|JsonConverter|replace\.null|converters?\.json", re.IGNORECASE
)

OF_POSTGRES: Mapping[str, str] = {
    "connectors/registry.py": "its line of registration",
    "model/positions.py": "its line of registration",
    "converters/avro/fast_path.py": "its example of an event is one of PostgreSQL's",
    "converters/json/fast_path.py": "whose source blocks the compiled way knows",
    "converters/json/described.py": "of which types the fields of source blocks are",
    "converters/json/compiled/scan_events.py": "reads these source blocks",
    "ops/status.py": "names of `schemas/status.json`, which operators read",
    "ops/metrics.py": "the name of a metric",
    "settings/config.py": "examples in the descriptions of settings",
    "state/advance.py": "an own snapshot's number by its first name; the word of a reason",
    "state/table_parts.py": "an own snapshot's number by its first name",
}
OF_JSON: Mapping[str, str] = {
    "converters/avro/converter.py": "what to use instead, for those who want no schemas",
    "converters/flattening.py": "a setting of a transform",
    "converters/registry.py": "its line of registration, and what is said where none is named",
    "state/advance.py": "what a reason's hint says",
}
ANYWHERE = ("cli/",)
"""Commands may name what the registry knows where a user needs it."""


def words_of(tree: ast.Module) -> Iterator[str]:
    """The names and texts of a module, without its docstrings."""
    nodes = list(ast.walk(tree))
    said = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in said:
                yield text
            case ast.Constant(value=bytes(text)):
                yield text.decode("utf-8", "replace")
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Import(names=names):
                yield from (one.name for one in names)


def found(words: re.Pattern[str], home: str, package: Path = PACKAGE) -> dict[str, list[str]]:
    """By module what it says of another's words."""
    places = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    return {
        name: said
        for name, path in sorted(places.items())
        if not name.startswith((home, *ANYWHERE))
        and (said := [one for one in words_of(parsed(path)) if words.search(one)])
    }


@pytest.mark.parametrize(
    ("words", "home", "excused"),
    [
        (POSTGRES, "connectors/postgres/", OF_POSTGRES),
        (JSON_CONVERTER, "converters/json/", OF_JSON),
    ],
    ids=["PostgreSQL", "JSON"],
)
def test_words_stand_in_their_own_folder(words, home, excused):
    said = found(words, home)
    assert {name: some for name, some in said.items() if name not in excused} == {}
    assert sorted(set(excused) - set(said)) == [], "nothing of it is there any more"


def test_a_word_is_found_wherever_it_stands_in_the_code(tmp_path):
    (tmp_path / "connectors" / "postgres").mkdir(parents=True)
    (tmp_path / "connectors" / "postgres" / "own.py").write_text("SLOT = 'slot.name'\n")
    (tmp_path / "fine.py").write_text(
        '"""Of PostgreSQL."""\n\ndef slots(self):  # not a replication slot\n    """An LSN."""\n'
    )
    for name, text in {
        "imports": "from lakemark.connectors.postgres import key_sql",
        "names": "lsns = 1",
        "calls": "f(publication=1)",
        "texts": "x = f'the slot {name} is gone'",
        "bytes": "x = b'lsn'",
        "attributes": "now.slot_distance_bytes",
    }.items():
        (tmp_path / f"{name}.py").write_text(text + "\n")
    names = ["attributes.py", "bytes.py", "calls.py", "imports.py", "names.py", "texts.py"]
    assert sorted(found(POSTGRES, "connectors/postgres/", tmp_path)) == names
