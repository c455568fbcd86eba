"""Who may import whom inside lakemark, checked by parsing the sources.

1. A folder (or a file at the top) imports only what stands before it in `ORDER`.
2. Folders of one kind (`KINDS`) never import each other: a new one touches no other.
3. No module imports itself through others, whatever folder it is in.
4. What is in a folder of `SEALED` is imported by its registry alone, which has it by name.
5. A library stands only where `LIBRARIES` has it.
6. Only `EDGES` reach a library that talks to something outside; all other modules are pure.

Imports inside functions count. Those for the type checker alone count too, but not for 3 and 6.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "processor" / "lakemark"

ORDER: Final = (
    *("version", "errors", "failpoints", "backoff", "settings", "causes", "model"),
    *("kafka", "converters", "connectors", "source", "reconcile", "sink", "state"),
    *("plans", "tasks", "snapshot", "runners", "spark", "ops", "sources"),
    *("pipeline", "supervisor", "cli", "__main__", "__init__"),
)

KINDS: Final = ("converters", "connectors")

SEALED: Final[Mapping[str, str]] = {
    "converters": "converters.registry",
    "connectors": "connectors",
    "sink.delta": "sink.formats",
}
"""Folders behind a seam, or a kind of which all are, and who may import what is in them."""

LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "pyspark": (
        "spark",
        "reconcile.operator",
        "sink.delta.spark_merge",
        "sink.delta.spark_merge_driver",
    ),
    "py4j": ("spark",),
    "delta": ("spark",),
    "psycopg": ("connectors.postgres",),
    "pymysql": ("connectors.mysql",),
    "sqlglot": ("connectors.mysql", "connectors.postgres"),
    "deltalake": (*("sink.delta", "ops.stored_state", "ops.doctor.facts_machine"),),
    "obstore": ("sink.delta",),
    "confluent_kafka": (
        *("kafka", "converters.avro.registry_api"),
        *("source.fetch", "source.librdkafka", "sink.output"),
        *(
            "state.control",
            "state.ownership",
            "snapshot.chunk_task",
            "snapshot.adapters",
            "ops.feeds",
        ),
    ),
    "httpx": (
        *("converters.avro.registry_api", "converters.avro.registry_login"),
        *("connectors.connect_rest", "ops.served"),
    ),
    "numba": ("converters.compiler", "source.scan_messages"),
    "starlette": ("ops.http",),
    "uvicorn": ("ops.http",),
    "typer": ("cli",),
    "rich": ("cli",),
}
"""Where a library may be imported: modules, or folders with all that is in them."""

OUTSIDE: Final = frozenset(
    {"confluent_kafka", "delta", "deltalake", "httpx", "obstore", "psycopg", "py4j", "pymysql"}
    | {"pyspark"}
)

EDGES: Final[Mapping[str, str]] = {
    "": "__main__ pipeline plans supervisor tasks",
    "kafka": "brokers client_errors records",
    "converters.avro": "registry registry_api registry_checks registry_login",
    "connectors": "catalogs connect_rest connector parts registry",
    "connectors.mysql": (
        "binlog_snapshot chunk_reader facts_database key_cuts mysql_catalog mysql_chunks "
        "mysql_database mysql_errors mysql_facts mysql_rows mysql_session mysql_windows own_log "
        "planned_tables"
    ),
    "connectors.postgres": (
        "chunk_reader facts_database planned_tables postgres postgres_checksums postgres_chunks "
        "postgres_copy postgres_database postgres_facts postgres_fills postgres_keys "
        "postgres_publication postgres_session postgres_windows"
    ),
    "source": "fetch librdkafka",
    "reconcile": "operator",
    "sink": "apply formats found_rows kept_cuts verification",
    "sink.delta": (
        "chunk_files commits data_files deletion_vectors deletion_vectors_rows delta_format "
        "delta_rs failures maintenance object_client own_tables pending rebuild schema_evolution "
        "spark_merge spark_merge_driver staging table_actions table_log table_notes table_reader "
        "table_store"
    ),
    "sink.output": "dead_letter flushing publisher transaction writers",
    "state": "checkpoint connector_drift control ownership policies recovery takeover",
    "snapshot": "adapters chunk_task snapshots",
    "runners": "batch_runner local_runner stopping",
    "spark": "daemon hadoop_files jobs plan_broadcast query session spark_runner topics warm",
    "ops": "catalog_watch cuts feeds overview sent_events served source_watch stored_state",
    "ops.doctor": "doctor facts_connector facts_kafka facts_machine",
    "ops.http": "server",
    "ops.plan": "facts_lake facts_log plan",
    "ops.prepare": "prepare prepared_settings",
    "ops.trace": "facts_chunks facts_log facts_rows trace",
    "sources": "beside connecting cutting schema_topics source_set",
    "cli": (
        "__init__ check cli cut_cli dlq_cli prepared_files run_options signal_exchange "
        "snapshot_cli status_view trace_cli trace_view verify_cli wait_cli"
    ),
}
"""The modules that reach the outside, themselves or through others, by folder."""

PORTS: Final[Mapping[str, frozenset[str]]] = {
    "converters.avro.converter": frozenset(
        {"converters.avro.registry", "converters.avro.registry_checks"}
    )
}
"""The edges that a module makes behind a protocol, when it is first asked for what only they have:
who uses the module is not counted as reaching the outside for them."""

Imports = dict[str, set[str]]


def violations(package: Path = PACKAGE) -> list[str]:
    """Return one line for each import that breaks the rule, empty if none does."""
    ours, libraries = imports_of(package)
    typed, _ = imports_of(package, typed=True)
    return [
        *_order(typed),
        *_kinds(typed),
        *_sealed(typed),
        *_cycles(ours),
        *_libraries(libraries),
        *_edges(ours, libraries),
    ]


def imports_of(package: Path = PACKAGE, *, typed: bool = False) -> tuple[Imports, Imports]:
    """Return by module which of our modules it imports, and which libraries.

    Args:
        package: folder of the sources.
        typed: count also what is imported for the type checker alone.
    """
    paths = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    ours: Imports = {}
    libraries: Imports = {}
    for name, path in paths.items():
        found = _imports(path.read_text(encoding="utf-8"), typed=typed)
        ours[name] = {m for i in found if (m := _module(i, set(paths)))} - {name}
        libraries[name] = {imported.partition(".")[0] for imported in found} - {"lakemark"}
    return ours, libraries


@cache
def parsed(text: str) -> ast.Module:
    """Return the tree of a source, not to be changed: several figures read each."""
    return ast.parse(text)


def _name(path: Path, package: Path) -> str:
    """Return a module's name without `lakemark.`; a folder's is that of its `__init__`."""
    name = ".".join(path.relative_to(package).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def _imports(text: str, *, typed: bool) -> frozenset[str]:
    """Return everything a source imports; `from a import b` counts as `a.b`."""
    return frozenset(_statements(parsed(text), typed=typed))


_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements have others: no expression has one, and they are most of a tree."""


def _statements(node: ast.AST, *, typed: bool) -> Iterator[str]:
    for child in chain.from_iterable(getattr(node, block, ()) for block in _BLOCKS):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif typed or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)):
            yield from _statements(child, typed=typed)


def _module(imported: str, names: set[str]) -> str:
    """Return which of our modules an import means, empty if none."""
    if not imported.startswith("lakemark."):
        return ""
    name = imported.removeprefix("lakemark.")
    while name and name not in names:
        name = name.rpartition(".")[0]  # what was imported is a name inside the module
    return name


def group(name: str) -> str:
    """Return the folder of a module on the first level, or the module that is a file there."""
    return name.partition(".")[0]


def reached(start: str, imports: Imports) -> set[str]:
    """Return the modules that `start` imports, itself or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in imports[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def _order(ours: Imports) -> Iterator[str]:
    places = {name: place for place, name in enumerate(ORDER)}
    for name in sorted(ours):
        if group(name) not in places:
            yield f"{name} has no place: name {group(name)} in ORDER, or put it into a folder"
            continue
        for target in sorted(ours[name]):
            if places.get(group(target), -1) > places[group(name)]:
                yield f"{name} imports {target}: {group(target)} stands behind {group(name)}"


def _kinds(ours: Imports) -> Iterator[str]:
    for name in sorted(ours):
        kind, _, rest = name.partition(".")
        for target in sorted(ours[name]):
            other, _, there = target.partition(".")
            inside = "." in rest and "." in there
            if kind in KINDS and other == kind and inside and group(rest) != group(there):
                yield f"{name} imports {target}: one of {kind} does not know another"


def _sealed(ours: Imports) -> Iterator[str]:
    for name in sorted(ours):
        for place, registry in SEALED.items():
            for target in sorted(ours[name]):
                folder = _folder(target, place)
                if folder and not _is_in(name, folder) and not _is_in(name, registry):
                    yield f"{name} imports {target}: only {registry} may import what is in {folder}"


def _folder(target: str, place: str) -> str:
    """The folder of a sealed place in which a module stands; empty if in none."""
    if not _is_in(target, place):
        return ""
    if place not in KINDS:
        return place
    parts = target.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else ""


def _is_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def _cycles(ours: Imports) -> Iterator[str]:
    for name in ours:
        if name in (found := reached(name, ours)):
            through = sorted(m for m in found if m != name and name in reached(m, ours))
            yield f"{name} imports itself through {', '.join(through)}"


def _libraries(libraries: Imports) -> Iterator[str]:
    for name in sorted(libraries):
        for library in sorted(libraries[name] & set(LIBRARIES)):
            places = LIBRARIES[library]
            if not any(_is_in(name, place) for place in places):
                yield f"{name} imports {library}: only {', '.join(places)} may"


def _edges(ours: Imports, libraries: Imports) -> Iterator[str]:
    allowed = {
        f"{folder}.{one}".removeprefix(".").removesuffix(".__init__")
        for folder, names in EDGES.items()
        for one in names.split()
    }
    ours = {name: found - PORTS.get(name, frozenset()) for name, found in ours.items()}
    outside = {name for name in ours if libraries[name] & OUTSIDE}
    edges = {name for name in ours if name in outside or reached(name, ours) & outside}
    for name in sorted(edges - allowed):
        reasons = sorted(({name} | reached(name, ours)) & outside)
        yield f"{name} is no longer pure: it reaches the outside in {', '.join(reasons)}"
    for name in sorted((allowed & set(ours)) - edges):
        yield f"{name} is pure: take it out of EDGES"
