"""The transform that takes the envelope away, and what it leaves of it: Debezium's settings.

`ExtractNewRecordState` makes of an event the row alone. What the envelope said is added to the
value (`add.fields`) or the record's headers (`add.headers`), under names that the transform makes.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from lakemark.model.decoding import AddedField, Flattening
from lakemark.model.value_rules import connector_of
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.names import split_list

CLASS: Final = "ExtractNewRecordState"
DELETED: Final = "__deleted"
"""Member of a value by which `rewrite` tells a row that is gone, beside what is added."""

DELETES: Final = "delete.tombstone.handling.mode"
OR_ARRIVAL: Final = "; or set source.order to arrival, which promises less"
"""The other way out, for rows that say no place in the log."""
_ADDED: Final = ("add.fields", "add.headers")
_REWRITTEN: Final = frozenset({"rewrite", "rewrite-with-tombstone"})
_OF_EVENT: Final = frozenset({"op", "ts_ms", "ts_us", "ts_ns"})
_OF_TRANSACTION: Final = frozenset({"id", "data_collection_order", "total_order"})
_SOURCE, _TRANSACTION = "source", "transaction"


def alias_of(settings: Mapping[str, str]) -> str | None:
    """Return the alias of the transform; None without, and where it is for some records alone."""
    for alias in split_list(settings.get("transforms", "")):
        prefix = f"transforms.{alias}"
        whole = not settings.get(f"{prefix}.predicate")
        if whole and settings.get(f"{prefix}.type", "").split(".")[-1] == CLASS:
            return alias
    return None


def flattening_of(settings: Mapping[str, str]) -> Flattening | None:
    """Return what the transform leaves of the envelope; None where there is no such transform.

    Args:
        settings: of the connector.
    """
    alias = alias_of(settings)
    if alias is None:
        return None
    fields, headers = (
        tuple(
            _added(told, settings.get(f"transforms.{alias}.{name}.prefix", "__"))
            for told in split_list(settings.get(f"transforms.{alias}.{name}", ""))
        )
        for name in _ADDED
    )
    return Flattening(fields, headers, connector_of(settings.get("connector.class", "")))


def _added(told: str, prefix: str) -> AddedField:
    """Return a field of the transform's list: `[BLOCK.]FIELD[:NAME]`."""
    path, _, name = told.partition(":")
    block, dot, field = path.strip().rpartition(".")
    if not dot:
        block = "" if field in _OF_EVENT else _TRANSACTION if field in _OF_TRANSACTION else _SOURCE
    usual = f"{block}_{field}" if dot else field
    return AddedField(prefix + (name.strip() or usual), block, field)


def needed(
    of_source: Collection[str], of_transaction: Collection[str], container: str
) -> tuple[str, ...]:
    """Return the fields without which events have no place in the log, in the transform's words.

    Args:
        of_source: fields of the source block that positions are made of.
        of_transaction: likewise of the transaction block.
        container: what a table stands in, in the connector's words.
    """
    outer = "db" if container == "database" else container
    named = (outer, "table", "snapshot", *of_source)
    return (
        "op",
        *(f"{_SOURCE}.{name}" for name in named),
        *(f"{_TRANSACTION}.{name}" for name in of_transaction),
    )


def problems(settings: Mapping[str, str], wanted: Collection[str]) -> Iterator[Mistake]:
    """Yield why rows without an envelope cannot be put in order, or lose something.

    Args:
        settings: of the connector, which has the transform.
        wanted: see `needed`.
    """
    alias, found = alias_of(settings), flattening_of(settings)
    if alias is None or found is None:
        return
    start = f"transforms.{alias}"
    lacks = {
        name: [path for path in wanted if path not in {_path(one) for one in told}]
        for name, told in zip(_ADDED, (found.fields, found.headers), strict=True)
    }
    whole = [name for name, missing in lacks.items() if not missing]
    if not whole:
        setting = f"{start}.{_ADDED[0]}"
        told = settings.get(setting, "")
        everything = ",".join(filter(None, (told, *lacks[_ADDED[0]])))
        yield Mistake(
            setting,
            f"lacks {', '.join(lacks[_ADDED[0]])}: {CLASS} removes the envelope, and without them"
            " nobody knows in which order rows were changed",
            SetTo(setting, everything, more=f", or remove {alias} from transforms{OR_ARRIVAL}"),
        )
    mode = settings.get(f"{start}.{DELETES}", "tombstone").strip().lower()
    if mode not in _REWRITTEN and not (mode == "delete-to-tombstone" and _ADDED[1] in whole):
        yield Mistake(
            f"{start}.{DELETES}",
            f"is {mode}: nothing says when a row was deleted",
            SetTo(f"{start}.{DELETES}", "rewrite"),
        )
    yield from losses(settings, alias)


def losses(settings: Mapping[str, str], alias: str) -> Iterator[Mistake]:
    """Yield what the transform takes from rows, in whatever order they are read.

    Args:
        settings: of the connector.
        alias: of the transform.
    """
    start = f"transforms.{alias}"
    if settings.get(f"{start}.replace.null.with.default", "true").strip().lower() == "true":
        yield Mistake(
            f"{start}.replace.null.with.default",
            "is not false: NULL in a column that has a default arrives as the default",
            SetTo(f"{start}.replace.null.with.default", "false"),
            warning=True,
        )
    for name in ("drop.fields.header.name", "route.by.field"):
        if settings.get(f"{start}.{name}"):
            yield Mistake(
                f"{start}.{name}",
                "makes topics or columns depend on the row",
                f"remove {start}.{name}",
            )


def _path(one: AddedField) -> str:
    return f"{one.block}.{one.field}" if one.block else one.field
