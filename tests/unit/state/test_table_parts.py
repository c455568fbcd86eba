"""Each part of a table's state is written by its own methods alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lakemark.state import table_parts
from lakemark.state.stored_form import PARTS
from stack.import_rule import PACKAGE

FIELDS = {part: {f.name for f in msgspec.structs.fields(kind)} for part, kind in PARTS.items()}
CHANGES = {"append", "add", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}


def writes(tree: ast.AST) -> Iterator[str]:
    """Yield what is assigned, deleted or changed in place of a part, as `part.field`."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from filter(None, map(field, flat(targets)))
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from filter(None, [field(target)])
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CHANGES:
                yield from filter(None, [field(value)])


def flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from flat(target.elts)
        else:
            yield target


def field(node: ast.expr) -> str:
    """Return the field of a part that an expression is, or is in; empty if of none."""
    while isinstance(node, ast.Subscript):
        node = node.value
    match node:
        case ast.Attribute(attr=name, value=ast.Attribute(attr=part)):
            return f"{part}.{name}" if name in FIELDS.get(part, ()) else ""
    return ""


def test_nobody_else_writes_a_part():
    own = Path(table_parts.__file__)
    others = [path for path in PACKAGE.rglob("*.py") if path != own]
    assert not {
        f"{path.relative_to(PACKAGE)}: {found}"
        for path in others
        for found in writes(ast.parse(path.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize(
    "code",
    [
        "entry.size.rows = 1",
        "entry.size.rows, x = 1, 2",
        "state.tables[n].repair.reread_keys[k] = 1",
        "del entry.repair.reread_keys[k]",
        "entry.size.events += 1",
        "entry.progress.from_offsets['t'][0] = 1",
        "entry.files.rebuild_over.append(name)",
        "entry.progress.from_offsets.setdefault(t, {}).update(x)",
    ],
)
def test_a_write_is_seen(code):
    assert list(writes(ast.parse(code)))


@pytest.mark.parametrize("code", ["x = entry.size.rows", "row.rows = 1", "entry.state = 'x'"])
def test_reading_and_other_things_are_none(code):
    assert not list(writes(ast.parse(code)))
