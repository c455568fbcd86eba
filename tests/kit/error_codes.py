"""Every code that lakemark gives to a failure, collected by parsing its sources.

A code is a kebab-case text that stands where codes stand:

1. as the argument `code` or `void` of a call, by name or by place (dataclasses included), also of
   those callables whose parameter is called `reason` and holds a code (`BY_REASON`);
2. assigned to a name or an attribute called `code`, `void` or `reason`;
3. in a tuple before a sentence: ``("no-key", "its records have no key: …")``; what stands in
   brackets, as the words of a `Literal`, is no such tuple.

Names are followed to module constants, in the module itself or in the one that is named, and to
what they are assigned in the module; calls to what these functions return.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.sources import parsed

PACKAGE = Path(__file__).parents[2] / "processor" / "lakemark"

NAMES = {"code", "void"}
ASSIGNED = NAMES | {"reason"}
# Callables that take a code as `reason`.
BY_REASON = {"_bad", "_bad_plan", "reject", "void"}
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass
class Source:
    """One module: what its names and calls may be.

    Attributes:
        constants: texts by name.
        chosen: dictionaries and conditional expressions, by the name they are assigned to.
        returned: what functions return, by name.
        takes: places of the arguments that are codes, by the callable's name.
        imported: dotted names of what is imported, by the name it has here.
    """

    path: Path
    tree: ast.Module
    constants: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    returned: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    takes: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    imported: dict[str, str] = field(default_factory=dict)


def error_codes(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Every code, with the modules that give it."""
    sources = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): _source(path)
        for path in sorted(package.rglob("*.py"))
    }
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources.values():
        for value in _values(source, sources):
            for text in _texts(value, source, sources):
                if CODE.fullmatch(text):
                    found[text].add(source.path.relative_to(package).as_posix())
    return dict(found)


def _source(path: Path) -> Source:
    source = Source(path, parsed(path))
    for node in ast.walk(source.tree):
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
                | ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
            ) if name.isupper():
                source.constants[name] = text
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp() | ast.Dict() as value):
                source.chosen[name].append(value)
            case ast.ImportFrom(module=str(module), names=names):
                source.imported |= {one.asname or one.name: f"{module}.{one.name}" for one in names}
            case ast.FunctionDef(name=name):
                returned = (n.value for n in ast.walk(node) if isinstance(n, ast.Return))
                source.returned[name] += [value for value in returned if value is not None]
                taken = [arg.arg for arg in node.args.args if arg.arg not in {"self", "cls"}]
                source.takes[name] |= _places(name, taken)
            case ast.ClassDef(name=name):
                lines = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
                taken = [target.id for target in lines if isinstance(target, ast.Name)]
                source.takes[name] |= _places(name, taken)
    return source


def _places(callee: str, names: Iterable[str]) -> set[int]:
    wanted = NAMES | ({"reason"} if callee in BY_REASON else set())
    return {at for at, name in enumerate(names) if name in wanted}


def _values(source: Source, sources: dict[str, Source]) -> Iterator[ast.expr]:
    """Expressions that stand where a code stands."""
    nodes = list(ast.walk(source.tree))
    in_brackets = {id(node.slice) for node in nodes if isinstance(node, ast.Subscript)}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                taken = _taken(node.func, source, sources)
                yield from (args[at] for at in taken if at < len(args))
                words = NAMES | ({"reason"} if name in BY_REASON else set())
                yield from (word.value for word in node.keywords if word.arg in words)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from (v for t, v in zip(targets, values, strict=True) if _is_named(t))
            case ast.Assign(targets=[target], value=value) if _is_named(target):
                yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_named(target):
                yield value
            case ast.Tuple(elts=parts) if id(node) not in in_brackets:
                last = max((at for at, part in enumerate(parts) if _is_sentence(part)), default=0)
                yield from (part for part in parts[:last] if not _is_sentence(part))


def _taken(function: ast.expr, source: Source, sources: dict[str, Source]) -> set[int]:
    """Places of a call's arguments that are codes; of a method, those of all that have its name."""
    if isinstance(function, ast.Name):
        return _home(function.id, source, sources).takes.get(function.id, set())
    name = function.attr if isinstance(function, ast.Attribute) else ""
    return {at for one in sources.values() for at in one.takes.get(name, ())}


def _home(name: str, source: Source, sources: dict[str, Source]) -> Source:
    """The module that a name is defined in."""
    return sources.get(source.imported.get(name, "").rpartition(".")[0], source)


def _is_named(target: ast.expr) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in ASSIGNED
    return False


def _is_sentence(value: ast.expr) -> bool:
    match value:
        case ast.JoinedStr():
            return True
        case ast.Constant(value=str(text)):
            return text.count(" ") > 1
    return False


def _texts(value: ast.expr, source: Source, sources: dict[str, Source]) -> Iterator[str]:
    """The texts that an expression may be, as far as they stand in the sources."""
    if isinstance(value, ast.Constant):
        yield from (value.value,) if isinstance(value.value, str) else ()
    elif isinstance(value, ast.JoinedStr):
        yield from _joined(value.values, source, sources)
    else:
        for home, inner in _inside(value, source, sources):
            yield from _texts(inner, home, sources)


def _inside(
    value: ast.expr, source: Source, sources: dict[str, Source]
) -> Iterator[tuple[Source, ast.expr]]:
    """The expressions whose value an expression takes, each with its module."""
    found: list[ast.expr] = []
    home = source
    match value:
        case ast.IfExp(body=one, orelse=other):
            found = [one, other]
        case ast.BoolOp(values=found):
            pass
        case ast.Name(id=name):
            home = _home(name, source, sources)
            found = [*_constant(home, name), *source.chosen.get(name, ())]
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            home = sources.get(source.imported.get(module, ""), source)
            found = _constant(home, name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[_, other]):
            tables = (one for one in source.chosen.get(name, ()) if isinstance(one, ast.Dict))
            found = [other, *(value for table in tables for value in table.values)]
        case ast.Call(func=ast.Name(id=name)):
            found = source.returned.get(name, [])
        case ast.Call(func=ast.Attribute(attr=name)):
            homes = [one for one in sources.values() if name in one.returned]
            if len(homes) == 1:
                home, found = homes[0], homes[0].returned[name]
    yield from ((home, inner) for inner in found)


def _constant(source: Source, name: str) -> list[ast.expr]:
    return [ast.Constant(source.constants[name])] if name in source.constants else []


def _joined(parts: Iterable[ast.expr], source: Source, sources: dict[str, Source]) -> Iterator[str]:
    """An f-string of which every part is known."""
    texts = [""]
    for part in parts:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        found = list(_texts(inner, source, sources))
        texts = [text + more for text in texts for more in found]
    yield from texts
