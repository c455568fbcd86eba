"""The settings that only PostgreSQL's connector has, and what they do to its events. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from lakemark.connectors.connector_traits import SETTING, ConnectorTraits
from lakemark.converters import arrival_order
from lakemark.model.findings import Finding, fine, warning
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.names import split_list

SLOT: Final = "slot.name"
PGOUTPUT: Final = "pgoutput"


def slot_of(settings: Mapping[str, str]) -> str:
    """Return the name of the connector's slot, empty where only Connect can tell it."""
    name = settings.get(SLOT, "debezium")
    return "" if "${" in name else name


def sends_truncates(settings: Mapping[str, str]) -> bool:
    """Say whether a truncate comes as an event: some settings leave it out, or take it away."""
    skipped = split_list(settings.get("skipped.operations", "t").lower())
    plugin = settings.get("plugin.name", "decoderbufs").strip()
    return "t" not in skipped and plugin == PGOUTPUT and not arrival_order.is_flat(settings)


def _problems(settings: Mapping[str, str]) -> Iterator[Mistake]:
    if settings.get("slot.drop.on.stop", "false").strip().lower() == "true":
        yield Mistake(
            "slot.drop.on.stop",
            "changes made while the connector is stopped are lost",
            SetTo("slot.drop.on.stop", "false"),
            warning=True,
        )


def _findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    plugin = settings.get("plugin.name", "decoderbufs").strip()
    if plugin != PGOUTPUT:
        yield warning(
            SETTING,
            "plugin.name",
            f"{plugin} (Debezium's default) does not send truncates: a truncated table keeps its"
            " rows",
            SetTo("plugin.name", PGOUTPUT),
        )
        return
    name = "publication.autocreate.mode"
    mode = settings.get(name, "all_tables").strip().lower()
    means = {
        "all_tables": "all_tables: the publication has every table, and needs a superuser to make",
        "filtered": "filtered: the connector keeps the publication to the tables it captures",
        "disabled": "disabled: whoever adds a table adds it to the publication too",
    }
    if mode in means:
        yield fine(SETTING, name, means[mode])
    else:
        yield warning(
            SETTING,
            name,
            f"{mode}: the publication is made without tables, so none has events until it is added",
            SetTo(name, "filtered"),
        )


TRAITS: Final = ConnectorTraits(
    connector="postgresql",
    schemes=("postgresql", "postgres"),
    example="postgresql://lakemark@localhost:5432/shop",
    reads_know_their_place=False,
    has_schema_topic=False,
    hides_tables=False,
    container="schema",
    naming=("publication.name",),
    shown=(SLOT, "publication.name", "plugin.name"),
    driver=("org.postgresql.",),
    unread_log="its slot keeps the log",
    silent_log="its slot keeps the log that all others write, until the disk is full",
    problems=_problems,
    findings=_findings,
    has_reader=lambda settings: bool(slot_of(settings)),
)
