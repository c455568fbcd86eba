"""Who may import whom inside lakemark, checked by parsing the sources.

1. No module imports itself through others.
2. `errors`, `events` and `positions` import nothing of ours.
3. An *edge* is a module that reaches, itself or through others, a library that talks to something
   outside (`OUTSIDE`). The pure core (`PURE`) holds no edge.
4. The folders of the picture do not use each other's edges; `JOINS` tie them together.
5. Only `SPARK` import PySpark, so that all other modules are tested without Java.
6. `pipeline` is imported only by what runs it, `cli` only by `__main__`.

Imports inside functions count; imports for the type checker alone do not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "processor" / "lakemark"

WORDS = {"errors", "events", "positions"}

PURE = {
    *("keys", "source.envelope", "source.schema", "source.rows"),
    *("reconcile.window", "reconcile.chunks", "reconcile.remembered", "reconcile.state"),
    "reconcile.outputs",
    *("snapshot.chunks", "snapshot.fields", "snapshot.signals"),
    *("snapshot.notifications", "snapshot.boundaries", "snapshot.cells", "snapshot.shapes"),
    *("snapshot.visibility", "snapshot.conditions", "snapshot.condition_text"),
    *("snapshot.following", "snapshot.refusals", "snapshot.windows", "snapshot.runs"),
    *("snapshot.flight", "settings.file_secret", "settings.masking", "terminal"),
    *("snapshot.acceptance", "table_skip", "dead_letters", "replays"),
    *("own_topics", "ops.findings", "ops.checks_topics", "ops.checks_connector"),
    *("output_names", "ops.checks_outputs"),
    *("ops.checks_database", "ops.checks_tables", "ops.checks_machine", "ops.checks_place"),
    *("sink.rendering", "sink.envelopes", "sink.splicing", "sink.forwarding", "sink.row_events"),
    *("sink.roaring", "sink.key_index", "sink.row_rules"),
    *("ops.board", "ops.lag", "ops.history", "ops.answers", "ops.status", "ops.health"),
    *("ops.source_side", "ops.connector_trace"),
    *("refresh", "selection", "gaps", "catalog_facts", "catalog_changes"),
    *("catalog_policies", "schema_policy", "fills"),
    *("ops.planned", "state.progress", "settings_record", "settings.effects"),
    *("backoff", "namesakes", "decoding", "causes", "chunk_rows"),
    *("catch_up", "new_partitions", "control_records", "handling", "signal_skip"),
    *("settings.patterns", "settings.java_syntax", "settings.character_sets"),
}

FOLDERS = {"source", "reconcile", "sink", "snapshot", "ops"}

JOINS = {"pipeline", "snapshots", "supervisor", "cli", "__main__"} | {
    *("ops.doctor", "ops.facts_database"),  # the doctor asks everybody
    *("ops.plan", "ops.facts_lake", "ops.facts_sizes"),  # and so does the plan
}

IMPORTED_BY = {"pipeline": {"supervisor", "cli"}, "cli": {"__main__"}}

SPARK = {
    *(
        "daemon",
        "hadoop_files",  # Hadoop's file systems, through py4j
        "handover",
        "session",
        "spark_runner",
        "warming",
        "source.topics",
        "stages",
        "reconcile.operator",
    ),
    *("sink.spark_merge", "sink.bigtable", "snapshot.jobs", "snapshot.world"),
}

OUTSIDE = {"confluent_kafka", "delta", "deltalake", "httpx", "psycopg", "py4j", "pyspark"}

Imports = dict[str, set[str]]


def violations(package: Path = PACKAGE) -> list[str]:
    """Return one line for each import that breaks the rule, empty if none does."""
    ours, libraries = imports_of(package)
    return [
        *_cycles(ours),
        *_words(ours),
        *_edges(ours, libraries),
        *_spark(libraries),
        *_privileges(ours),
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
        found = _imports(ast.parse(path.read_text(encoding="utf-8")), typed=typed)
        ours[name] = {m for i in found if (m := _module(i, set(paths)))} - {name}
        libraries[name] = {imported.partition(".")[0] for imported in found} - {"lakemark"}
    return ours, libraries


def _name(path: Path, package: Path) -> str:
    """Return a module's name without `lakemark.`; a folder's is that of its `__init__`."""
    name = ".".join(path.relative_to(package).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imports(node: ast.AST, *, typed: bool) -> set[str]:
    """Return everything imported; `from a import b` counts as `a.b`."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found.update(alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            found.update(f"{child.module}.{alias.name}" for alias in child.names)
        elif typed or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)):
            found |= _imports(child, typed=typed)
    return found


def _module(imported: str, names: set[str]) -> str:
    """Return which of our modules an import means, empty if none."""
    if not imported.startswith("lakemark."):
        return ""
    name = imported.removeprefix("lakemark.")
    while name and name not in names:
        name = name.rpartition(".")[0]  # what was imported is a name inside the module
    return name


def reached(start: str, imports: Imports) -> set[str]:
    """Return the modules that `start` imports, itself or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in imports[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def _cycles(ours: Imports) -> Iterator[str]:
    for name in ours:
        if name in (found := reached(name, ours)):
            through = sorted(m for m in found if m != name and name in reached(m, ours))
            yield f"{name} imports itself through {', '.join(through)}"


def _words(ours: Imports) -> Iterator[str]:
    for name in sorted(WORDS & set(ours)):
        for target in sorted(ours[name]):
            yield f"{name} imports {target}: the words import nothing of ours"


def _edges(ours: Imports, libraries: Imports) -> Iterator[str]:
    outside = {name for name in ours if libraries[name] & OUTSIDE}
    edges = {name for name in ours if name in outside or reached(name, ours) & outside}
    for name in sorted(PURE & edges):
        reasons = sorted(({name} | reached(name, ours)) & outside)
        yield f"{name} is no longer pure: it reaches the outside in {', '.join(reasons)}"
    for name in sorted(set(ours) - JOINS):
        folder = name.partition(".")[0]
        for target in sorted(ours[name] & edges):
            other = target.partition(".")[0]
            if folder in FOLDERS and other in FOLDERS and folder != other:
                yield f"{name} imports {target}: {folder} does not use the edges of {other}"


def _spark(libraries: Imports) -> Iterator[str]:
    for name, imported in libraries.items():
        if imported & {"pyspark", "py4j", "delta"} and name not in SPARK:
            yield f"{name} imports PySpark: only {', '.join(sorted(SPARK))} do"


def _privileges(ours: Imports) -> Iterator[str]:
    for target, allowed in IMPORTED_BY.items():
        for name in sorted(name for name in ours if target in ours[name] and name not in allowed):
            yield f"{name} imports {target}: only {', '.join(sorted(allowed))} may"
