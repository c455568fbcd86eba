"""The documents agree with the code: commands, settings, codes, events, links, snippets."""

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import sqlglot
import typer
import yaml
from deltalake import Schema, write_deltalake

from lakemark.cli import cli
from lakemark.connectors.postgres.schema_file import schemas_from_file
from lakemark.connectors.registry import CONNECTORS, traits_of
from lakemark.connectors.suitability import problems_with
from lakemark.converters.registry import CONVERTERS
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import Config, Metadata, load, load_with_origins
from lakemark.sink.row_images import cdc_type
from lakemark.snapshot import signals
from stack import reference
from tests.kit import documents
from tests.kit.documents import DOCS, PAGES, ROOT, Block, blocks, name_of
from tests.kit.error_codes import PACKAGE, error_codes
from tests.kit.sources import parsed as tree_of
from tests.unit.reconcile.test_chunk_decisions import Shard, manifest, part
from tests.unit.reconcile.test_window import A, at, log, marks, row

SMALL = """\
name: shop
kafka: {bootstrap_servers: localhost:9092}
source: {connect: {url: http://localhost:8083, connector: shop}}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""
GRANT = re.compile(
    r"GRANT (\w+|[A-Z_, ]+ ON (\*\.\*|SCHEMA \w+|\w+\.\w+(, \w+\.\w+)*)) TO \w+(\s*/\*.*)?"
)
pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


# --- codes, events, settings -----------------------------------------------------------------


@pytest.mark.slow
def test_every_code_has_its_line_in_the_failures_and_no_other_has():
    told = Counter(documents.first_cells(DOCS / "failures.md"))
    codes = error_codes().keys()
    assert len(codes) > 100, "the collector has lost its way"
    assert {code for code in codes if code not in told} == set(), "add them to docs/failures.md"
    assert {code for code in told if code not in codes} == set(), "the code has none of these"
    assert {code for code, lines in told.items() if lines > 1} == set(), "said twice"


def test_the_collector_finds_codes_wherever_they_stand(tmp_path):
    (tmp_path / "places.py").write_text(
        "FAR: Final = 'far-away'\n"
        "class Refusal:\n    code: str\n    message: str\n"
        "class Down(Error):\n    code = 'class-level'\n"
        "def stop(code, message): ...\n"
        "def why(x):\n    return 'returned-one' if x else FAR\n"
        "def work(x):\n"
        "    Refusal('by-place', 'a sentence of words')\n"
        "    stop('in-function', 'y')\n"
        "    raise Error('z', code='by-name' if x else 'or-else')\n"
        "def more(x):\n"
        "    report.stop = ('in-tuple', f'a sentence of {x}')\n"
        "    void = why(x)\n"
        "    log.info('no-code', table='no-code-either')\n"
        "Word = Literal['no-code', 'three words of one']\n"
    )
    assert set(error_codes(tmp_path)) == {
        *("far-away", "class-level", "returned-one", "by-place", "in-function", "by-name"),
        *("or-else", "in-tuple"),
    }


def test_the_reference_of_the_settings_is_that_of_the_model():
    told = (DOCS / "configuration.md").read_text()
    assert told == reference.page(), "run: python -m stack.reference > docs/configuration.md"


def test_every_setting_of_the_reference_has_a_meaning():
    rows = [line.split(" | ") for line in reference.page().splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows if not row[-1].strip(" |")] == []


def logged() -> dict[str, set[str]]:
    """Every event of the log, with its fields; "*" where more are added by name."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="info" | "warning" | "error" | "exception" | "debug"),
                    args=[ast.Constant(value=str(event)), *_],
                ):
                    found.setdefault(event, set()).update(w.arg or "*" for w in node.keywords)
                case ast.Dict(
                    keys=[ast.Constant(value="msg"), *more], values=[ast.Constant(value=event), *_]
                ):  # a line that is made without a logger
                    found.setdefault(event, set()).update(
                        key.value for key in more if isinstance(key, ast.Constant)
                    )
    return found


@pytest.mark.slow
def test_events_of_the_log_are_those_of_the_code():
    events = logged()
    _, _, text = (DOCS / "operations.md").read_text().partition("\n## Log\n")
    told = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| ([^|]*) \|", text, re.MULTILINE)
    assert len(told) > 10
    for event, fields in told:
        named = set(re.findall(r"`(\w+)`", fields))
        assert event in events, f"no such event: {event}"
        assert named <= events[event] or "*" in events[event], f"{event} has not all of {fields}"


def test_metrics_that_are_named_exist():
    source = (PACKAGE / "ops" / "metrics.py").read_text()
    known = set(re.findall(r'"(lakemark_\w+)"', source))
    for page in PAGES:
        named = set(re.findall(r"`(lakemark_[a-z_]+)", page.read_text()))
        assert {n for n in named if n not in known and n.removesuffix("_total") not in known} == (
            set()
        ), page.name


# --- commands --------------------------------------------------------------------------------


def parsed(arguments: list[str]) -> None:
    """Parses a command line as the program would, without running anything.

    Raises:
        Exception: there is no such command or option, or a value is missing.
    """
    command: Any = typer.main.get_command(cli.app)
    parent, rest = None, arguments
    while True:
        context = command.context_class(command, info_name=command.name, parent=parent)
        _, rest, _ = command.make_parser(context).parse_args(list(rest))
        if not hasattr(command, "resolve_command") or not rest:
            break
        _, command, rest = command.resolve_command(context, rest)
        parent = context
    if rest:
        raise ValueError(f"{rest} is too much")


@pages
def test_commands_can_be_given(page):
    for arguments in documents.commands(page):
        try:
            parsed(arguments)
        except Exception as error:  # noqa: BLE001 - of typer, without a name in public
            pytest.fail(f"{page.name}: lakemark {' '.join(arguments)}: {error}")


def test_a_command_that_does_not_exist_is_found():
    assert sum(1 for page in PAGES for _ in documents.commands(page)) > 40
    for wrong in ("snapshot begin x", "doctor --fast", "version now", "dlq show a --output"):
        with pytest.raises(Exception, match=r"(?i)no such|too much|requires an argument"):
            parsed(wrong.split())


# --- snippets --------------------------------------------------------------------------------


def settings(block: Block) -> dict[str, object]:
    """The settings of a YAML snippet; nothing if it is about something else."""
    hidden = re.sub(r"\$\{[^}]*\}", "placeholder", block.text)
    found = yaml.safe_load(hidden)
    known = isinstance(found, dict) and set(found) <= set(Config.model_fields)
    return found if known else {}


SETTINGS = [block for block in blocks("yaml") if settings(block)]


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_settings_are_accepted(block, tmp_path):
    environ = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", block.text), "secret-word")
    files = re.findall(r"\$\{file:([^}]+)\}", block.text)
    files += re.findall(r"(?:_location|_file): ([^\s,}$]+)", block.text)
    for name in files:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret-word\n")
    text = block.text
    if not {"name", "checkpoint"} <= settings(block).keys():
        # A part: beside the least that a configuration needs.
        mine = settings(block)
        rest = {name: value for name, value in yaml.safe_load(SMALL).items() if name not in mine}
        text = yaml.safe_dump(rest) + text
    file = tmp_path / "lakemark.yaml"
    file.write_text(text)
    assert load_with_origins(file, environ).warnings == []


@pages
def test_fences_begin_lines_of_their_own(page):
    """Else what is between two of them would not be tried."""
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if "```" in line]
    assert [line for line in fences if not line.lstrip().startswith("```")] == []
    assert len(fences) % 2 == 0


def test_there_are_settings_to_be_tried():
    assert len(SETTINGS) > 1


# A sink is none of ours; integration/test_consumers_of_avro_outputs runs it.
OURS = [block for block in blocks("json") if "SinkConnector" not in block.text]


@pytest.mark.parametrize("block", OURS, ids=str)
def test_signals_and_connectors_are_accepted(block, tmp_path):
    found = json.loads(block.text)
    if "data" in found:
        read = signals.read(b"shop", block.text.encode(), pipeline="shop", unnamed="")
        assert not isinstance(read, signals.Rejection), read
        return
    file = tmp_path / "lakemark.yaml"
    found = found.get("config", found)
    traits = traits_of(found)
    file.write_text(f"{SMALL}database: {{url: '{traits.example}'}}\n")
    assert list(problems_with(found, load(file, {}), kinds=CONNECTORS, traits=traits)) == []


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_sql_is_sql(block):
    dialect = "mysql" if block.page.name == "mysql.md" else "postgres"
    for statement in sqlglot.parse(block.text, read=dialect):
        assert statement is not None
        text = statement.sql(dialect)
        if text.startswith("GRANT"):  # the parser takes any, and the server is asked elsewhere
            assert GRANT.fullmatch(text), text


def delta_type(kind: pa.DataType) -> str:
    """An Arrow type in Delta's words."""
    if pa.types.is_list(kind):
        return f"array<{delta_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{delta_type(kind.key_type)},{delta_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{delta_type(f.type)}' for f in kind)}>"
    (field,) = Schema.from_arrow(pa.schema([("c", kind)])).fields
    return str(field.type.type)


def kept_as(written: str, modes: dict[str, str], folder: Path) -> str:
    """Delta's type of a PostgreSQL type under some handling modes."""
    file = folder / "schemas.yaml"
    file.write_text(
        json.dumps({"public.t": {"key": ["id"], "columns": {"id": "int", "c": written}}})
    )
    schema = schemas_from_file(file, HandlingModes.from_connector(modes))["public.t"]
    return delta_type(schema.column("c").type)


def test_column_types_are_those_of_the_code(tmp_path):
    rows = re.findall(
        r"^\| `([^`]+)` \| `([^`]+)` \| ([^|]*)\|$", (DOCS / "tables.md").read_text(), re.MULTILINE
    )
    told = {written: (kind, more) for written, kind, more in rows if kind and "." not in written}
    assert len(told) > 30
    members = {field.name for field in cdc_type(deletes="soft", metadata=get_args(Metadata))}
    for written, (kind, more) in told.items():
        if written in members:
            continue
        assert kept_as(written, {}, tmp_path) == kind, written
        for mode, value, other in re.findall(r"`([\w.]+)=(\w+)`: `([^`]+)`", more):
            assert kept_as(written, {mode: value}, tmp_path) == other, (
                f"{written} with {mode}={value}"
            )


def test_members_of_cdc_are_those_of_the_code():
    text = (DOCS / "tables.md").read_text()
    for field in cdc_type(deletes="soft", metadata=get_args(Metadata)):
        assert f"| `{field.name}` | `{delta_type(field.type)}` |" in text


def test_a_table_is_read_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": [7], "_cdc": [{"op": "c"}]})
    write_deltalake("lake/public/orders", rows)
    page = DOCS / "tables.md"
    (code,) = [b.text for b in blocks("python") if b.page == page and "from deltalake" in b.text]
    exec(compile(code, "docs/tables.md", "exec"), {})
    assert capsys.readouterr().out == "[{'id': 7}]\n"


def test_the_example_of_the_windows_is_decided_as_it_says():
    text = (DOCS / "windows.md").read_text()
    said = dict(re.findall(r"^\| (\d+) \| (.+?) \|", text, re.MULTILINE))
    opens, closes = (
        next(p for p, what in said.items() if w in what) for w in ("open row", "close")
    )
    ops = {"becomes": "u", "deleted": "d", "inserted": "c"}
    events = [
        (A, f"[{key}]".encode(), next(op for word, op in ops.items() if word in said[p]), int(p))
        for key, p in re.findall(r"touch (\d+) at (\d+)", text)
    ]
    assert len(events) == 3
    read = [int(key) for key in re.findall(r"(\d) `\w+`", re.search(r"the SELECT sees.*", text)[0])]
    rows = [row("w1", "open", int(opens)), row("w1", "close", int(closes))]
    shard = Shard()
    shard.batch(log=[log(*events)], marks=[marks(*rows)])
    (done,) = shard.batch(control=[manifest()], parts=[part(*read)])
    assert (done.rows, done.survivors, done.void) == (3, 1, "")
    assert shard.keys() == [b"[3]"]
    assert "3 has no touch and survives with position 100" in " ".join(text.split())
    assert {r["position"] for r in shard.survivors["chunk/1"]} == {at(100)}
    picture = (DOCS / "windows.svg").read_text()
    assert {f"T{n} at {p}" in picture for n, (*_, p) in enumerate(events, 1)} == {True}


# --- links -----------------------------------------------------------------------------------


@pages
def test_links_lead_somewhere(page):
    for path, heading in documents.links(page):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if heading:
            assert heading in documents.anchors(target), f"{page.name} links to {path}#{heading}"


def test_the_readme_leads_to_every_page():
    there = {(ROOT / path).resolve() for path, _ in documents.links(ROOT / "README.md") if path}
    assert {p.name for p in DOCS.glob("*.md") if p.resolve() not in there} == set()


def test_the_readme_says_on_its_first_screen_whether_lakemark_fits_and_how_to_begin():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130, "what is longer has a page in docs/"
    screen = lines[: lines.index("## How it works")]
    assert len(screen) <= 40
    assert "    ./dev demo --keep" in screen
    assert any(line.startswith("    ") and "lakemark run" in line for line in screen)
    rows = [line.split("|") for line in screen if line.startswith("| ")]
    yes = {row[1].strip(): row[2].lower() for row in rows}
    assert {kind for kind in CONNECTORS.values() if kind not in yes["source"]} == set()
    assert {kind for kind in CONVERTERS if kind not in yes["records"]} == set()


def test_pages_are_utf8_and_short_enough_to_be_read():
    for page in DOCS.glob("*.md"):
        lines = Path(page).read_text(encoding="utf-8").splitlines()
        assert len(lines) < 300, f"{page.name} has {len(lines)} lines"
