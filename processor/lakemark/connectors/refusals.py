"""Refusals of tables whose rows the connector's settings change: they cannot be read in chunks.

Pure. A chunk gives a row as the database has it. Where something between the database and Kafka
changes values, rows or names in a way that cannot be followed here, rows of chunks and rows of
events would differ for ever; then a snapshot is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemark.converters import flattening
from lakemark.settings.layers import SetTo
from lakemark.settings.names import split_list
from lakemark.settings.patterns import compile_java

# Transforms that leave the row images as they are, whatever else they do.
_HARMLESS: Final = frozenset(
    {
        *("ExtractChangedRecordState", "InsertHeader"),
        *("RegexRouter", "ByLogicalTableRouter", "ContentBasedRouter", "TimestampRouter"),
        *("DecodeLogicalDecodingMessageContent", "ActivateTracingSpan"),
    }
)
# Reads columns again that an event lacks: the database's own values.
_RESELECT: Final = "ReselectColumnsPostProcessor"
_REWRITES: Final = re.compile(r"column\.(mask|truncate)\..+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


PROPAGATED: Final = "column.propagate.source.type"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason.

    Attributes:
        code: stable name, kebab case.
        message: the setting and its effect.
        hint: what to do about it.
    """

    code: str
    message: str
    hint: str


def refusals(settings: Mapping[str, str], table: str, columns: Sequence[str] = ()) -> list[Refusal]:
    """The reasons not to read this table; empty if there are none.

    Args:
        settings: the connector's configuration.
        table: ``schema.table``.
        columns: all columns of the table. Without them column lists concern every table.
    """
    return [
        *_columns(settings, table, columns),
        *_names(settings, table, columns),
        *_converters(settings),
        *_transforms(settings),
    ]


def _columns(settings: Mapping[str, str], table: str, columns: Sequence[str]) -> Iterator[Refusal]:
    for name in sorted(settings):
        match = _REWRITES.fullmatch(name)
        if match is None or not settings[name].strip():
            continue
        hit = [c for c in columns if _matches(settings[name], f"{table}.{c}")]
        if hit or not columns:
            does = "masks" if match[1] == "mask" else "truncates"
            what = ", ".join(hit) or "columns"
            yield Refusal(
                f"column-{'masked' if match[1] == 'mask' else 'truncated'}",
                f"the connector's {name} {does} {what} of {table}: its rows differ from its events",
                "take the columns out of it, or leave them out with column.exclude.list",
            )


def _matches(expressions: str, column: str) -> bool:
    for expression in split_list(expressions):
        try:
            if compile_java(expression, ignore_case=True).matches(column):
                return True
        except ValueError:
            return True  # only Java knows
    return False


def _names(settings: Mapping[str, str], table: str, columns: Sequence[str]) -> Iterator[Refusal]:
    mode = settings.get("field.name.adjustment.mode", "none").strip().lower()
    if mode == "none":
        return
    restored = propagated_names(settings) if restores_names(settings) else ""
    odd = [
        c
        for c in columns
        if not _PLAIN_NAME.fullmatch(c) and not _matches(restored, f"{table}.{c}")
    ]
    if odd or not (columns or restored):
        what = ", ".join(odd) or "columns"
        yield Refusal(
            "columns-renamed",
            f"the connector's field.name.adjustment.mode {mode} renames {what}",
            f"{keeping_names(settings)}, or name the columns by letters, digits and underscores",
        )


def propagated_names(settings: Mapping[str, str]) -> str:
    """Return the expressions of the columns whose own names their records bring."""
    return settings.get(PROPAGATED, "").strip()


def restores_names(settings: Mapping[str, str]) -> bool:
    """Say whether the connector's converter brings names back that it had to change."""
    from lakemark.converters import registry  # noqa: PLC0415 - slow, and seldom needed

    return registry.restores_names(settings)


def keeping_names(settings: Mapping[str, str]) -> SetTo:
    """Return the setting with which columns have their own names."""
    if restores_names(settings):
        return SetTo(PROPAGATED, ".*")
    return SetTo("field.name.adjustment.mode", "none")


def _converters(settings: Mapping[str, str]) -> Iterator[Refusal]:
    converters = split_list(settings.get("converters", ""))
    if converters:
        yield Refusal(
            "custom-converter",
            f"the connector's converters {', '.join(converters)} write values in their own way",
            "remove them, or let the connector take the snapshot",
        )
    for alias in split_list(settings.get("post.processors", "")):
        if _class(settings, alias) != _RESELECT:
            yield Refusal(
                "post-processor",
                f"the connector's post processor {alias} changes events",
                "remove it, or let the connector take the snapshot",
            )


def _transforms(settings: Mapping[str, str]) -> Iterator[Refusal]:
    for alias in split_list(settings.get("transforms", "")):
        if alias == flattening.alias_of(settings):
            continue  # what it takes away is put back
        name = _class(settings, f"transforms.{alias}")
        if name == "Filter":
            yield Refusal(
                "transform-filters",
                f"the connector's transform {alias} drops events: rows of a snapshot might never"
                " be changed or deleted",
                "remove it, or let the connector take the snapshot",
            )
        elif name not in _HARMLESS:
            yield Refusal(
                "transform-changes-events",
                f"the connector's transform {alias} ({name or 'without a type'}) changes events",
                "remove it, or let the connector take the snapshot",
            )


def _class(settings: Mapping[str, str], prefix: str) -> str:
    return settings.get(f"{prefix}.type", "").strip().split(".")[-1]
