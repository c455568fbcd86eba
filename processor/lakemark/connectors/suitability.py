"""The connector's suitability: settings with which tables cannot be rebuilt from its events.

Every rule names the setting, its effect on the events, and what to set instead.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.refusals import keeping_names, propagated_names, restores_names
from lakemark.converters import arrival_order, flattening
from lakemark.errors import ConfigError
from lakemark.model import positions
from lakemark.model.handling_modes import HandlingModes, usual_choice
from lakemark.settings.config import Config
from lakemark.settings.java_syntax import PatternError
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.names import split_list, topic_regex
from lakemark.settings.patterns import compile_java

_NAMING: Final = "SchemaTopicNamingStrategy"  # Default… leaves the schema out
_UNWRAP: Final = frozenset({"ExtractNewRecordState", "ExtractNewDocumentState"})
_ROUTERS: Final = frozenset(
    {"RegexRouter", "ByLogicalTableRouter", "ContentBasedRouter", "TimestampRouter"}
)
_RESHAPE: Final = frozenset(
    {
        "Cast$Key",
        "EventRouter",
        "ExtractField$Key",
        "ExtractField$Value",
        "Flatten$Key",
        "Flatten$Value",
        "HoistField$Key",
        "HoistField$Value",
        "InsertField$Key",
        "ReplaceField$Key",
        "ValueToKey",
    }
)
_HARMLESS: Final = frozenset({"ExtractChangedRecordState", "InsertHeader"})
# What names tables and columns; these columns stand in the values, also of column.mask.….
_NAMING_THEM: Final = re.compile(
    r"column\.(mask|truncate)\..+|message\.key\.columns|signal\.data\.collection"
)
_KEYS: Final = "message.key.columns"
_POLICY: Final = "topic.creation.default.cleanup.policy"
_SHOWN: Final = 60  # characters of an expression
WITHOUT_ROWS: Final = frozenset({"no_data", "never", "schema_only"})
"""Values of `snapshot.mode` with which the connector's own snapshot reads no rows."""
TIME_LOSSES: Final[Mapping[str, str]] = {
    "connect": "cuts times and timestamps to milliseconds",
    "isostring": "cannot say the time 24:00: it is lost",
    "structured": "cannot say the time 24:00: it is lost",
    "nanoseconds": "cannot say timestamps before 1678 or after 2261: they are lost",
}
"""Values of `time.precision.mode` in which values are lost, and which."""
PARTS: Final = {
    "snapshot.select.statement.overrides": "rows that its statements do not select",
    "snapshot.include.collection.list": "rows of the tables that it does not name",
}
"""Settings, or beginnings of such, with which it does not read all rows; what it leaves out."""


def problems_with(
    settings: Mapping[str, str],
    config: Config,
    *,
    kinds: Mapping[str, str],
    traits: ConnectorTraits,
) -> Iterator[Mistake]:
    """Yield errors first, then warnings (`Mistake.warning`).

    Args:
        settings: the connector's own configuration.
        config: ours.
        kinds: connector classes that are supported, and what `source.connector` says of each.
        traits: of this class, or of any where it is not supported.
    """
    found = [
        *_connector(settings, kinds),
        *_naming(settings, config),
        *_address(settings, config, kinds, traits),
        *_placeholders(settings, traits),
        *_expressions(settings, traits),
        *_transforms(settings, config),
        *_flattened(settings, config, kinds, traits),
        *_converters(settings, config),
        *_losses(settings),
        *(_of_connector(problem) for problem in traits.problems(settings)),
        *_modes(settings),
        *_names_of_columns(settings),
        *_snapshots(settings, config, traits),
        *_cuts(settings, config),
    ]
    yield from sorted(found, key=lambda problem: problem.warning)


def _cuts(settings: Mapping[str, str], config: Config) -> Iterator[Mistake]:
    name = "provide.transaction.metadata"
    if config.stream.cuts != "off" and not _is(settings, name):
        yield _of_connector(
            Mistake(
                name,
                "is false: nothing tells where transactions end, so that no batch ends at a cut"
                " (stream.cuts)",
                SetTo(name, "true"),
                warning=True,
            )
        )


def _of_connector(problem: Mistake) -> Mistake:
    return replace(problem, path=f"connector: {problem.path}")


def _error(setting: str, message: str, hint: str) -> Mistake:
    return _of_connector(Mistake(setting, message, hint))


def _warning(setting: str, message: str, hint: str = "") -> Mistake:
    return _of_connector(Mistake(setting, message, hint, warning=True))


def _is(settings: Mapping[str, str], name: str, *, default: str = "false") -> bool:
    return settings.get(name, default).strip().lower() == "true"


def _connector(settings: Mapping[str, str], kinds: Collection[str]) -> Iterator[Mistake]:
    java_class = settings.get("connector.class", "")
    if java_class not in kinds:
        yield _error(
            "connector.class",
            f"{java_class or 'nothing'} is not supported yet",
            f"supported: {', '.join(kinds)}",
        )


def _address(
    settings: Mapping[str, str], config: Config, kinds: Collection[str], traits: ConnectorTraits
) -> Iterator[Mistake]:
    known = settings.get("connector.class") in kinds
    if known and config.database is not None and not traits.is_of(config.database.url):
        message = f"expected an address such as {traits.example}"
        yield Mistake("database.url", message, "name the database that the connector reads")


def _naming(settings: Mapping[str, str], config: Config) -> Iterator[Mistake]:
    prefix = settings.get("topic.prefix", "")
    if not prefix:
        yield _error("topic.prefix", "is missing", "set topic.prefix in the connector")
    elif "${" in prefix:
        yield _error(
            "topic.prefix",
            f"{prefix} is resolved by Connect only, so the topics cannot be known",
            "write topic.prefix as it is; it is no secret",
        )
    strategy = settings.get("topic.naming.strategy", _NAMING).split(".")[-1]
    if strategy != _NAMING and not config.source.topics:
        yield _error(
            "topic.naming.strategy",
            f"{strategy} names topics in a way lakemark does not know",
            "set source.topics to a regular expression of the topics",
        )
    if config.source.topics is None:
        wide = [regex for regex in config.source.tables if topic_regex(regex) is None]
        if wide:
            yield Mistake(
                "source.tables",
                f"{', '.join(wide)}: cannot be said in topic names, so all topics are read",
                "write plainer expressions, or set source.topics",
                warning=True,
            )


def _placeholders(settings: Mapping[str, str], traits: ConnectorTraits) -> Iterator[Mistake]:
    """Refuse placeholders in lists: without the names, excluded columns would come by snapshots."""
    for setting in sorted(settings):
        named = (*traits.naming, *_lists(traits))
        names = setting in named or _NAMING_THEM.fullmatch(setting)
        if names and "${" in settings[setting]:
            yield _error(
                setting,
                f"{settings[setting]} is resolved by Connect only: what it names cannot be known",
                "write the names as they are; they are no secrets",
            )


def _lists(traits: ConnectorTraits) -> list[str]:
    """The connector's lists of what it captures."""
    whats = (traits.container, "table", "column")
    return [f"{what}.{way}.list" for what in whats for way in ("include", "exclude")]


def _expressions(settings: Mapping[str, str], traits: ConnectorTraits) -> Iterator[Mistake]:
    """Report Java expressions that cannot be evaluated here: nobody knows what they name.

    The events would be right, the connector applies its lists itself. But a snapshot might read a
    table or a column whose changes never come, and a key might be another one.
    """
    lists = _lists(traits)
    found = [(setting, one) for setting in lists for one in split_list(settings.get(setting, ""))]
    for entry in settings.get(_KEYS, "").split(";"):
        expression, _, columns = entry.strip().rpartition(":")
        listed = filter(None, map(str.strip, columns.split(",")))
        found += [(_KEYS, f"{expression.strip()}.{column}") for column in listed]
    for setting, expression in found:
        if "${" in expression:
            continue  # said by `_placeholders`
        try:
            compile_java(expression, ignore_case=True)
        except PatternError as error:
            shown = expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}…"
            yield _error(setting, f"{shown}: {error}, so what it names cannot be known", error.hint)


def _transforms(settings: Mapping[str, str], config: Config) -> Iterator[Mistake]:
    for alias in split_list(settings.get("transforms", "")):
        prefix = f"transforms.{alias}"
        java_class = settings.get(f"{prefix}.type", "")
        name = java_class.split(".")[-1]
        # With a predicate it may leave the tables' topics alone; that cannot be told from here.
        make = _warning if settings.get(f"{prefix}.predicate") else _error
        if alias == flattening.alias_of(settings):
            continue  # see `_flattened`
        if name in _UNWRAP:
            yield make(
                prefix,
                f"{name} removes the envelope: position, operation and before image are lost",
                f"remove {alias} from transforms, or run a second connector without it",
            )
        elif name in _ROUTERS:
            unique = f"{prefix}.key.enforce.uniqueness"
            if name == "ByLogicalTableRouter" and _is(settings, unique, default="true"):
                yield make(
                    unique,
                    "is not false: keys get a field that is no column of the table",
                    SetTo(unique, "false"),
                )
            if not config.source.topics:
                yield make(
                    prefix,
                    f"{name} renames topics",
                    "set source.topics to a regular expression of the topics after it",
                )
        elif name in _RESHAPE:
            yield make(
                prefix,
                f"{name} changes the form of keys or values",
                f"remove {alias} from transforms",
            )
        elif name == "Filter":
            yield _warning(prefix, "Filter drops events: tables will differ from the source")
        elif name not in _HARMLESS:
            yield _warning(
                prefix,
                f"{java_class or 'a transform without a type'} changes events after Debezium",
                "make sure that it leaves envelope, key and headers as they are",
            )


def _flattened(
    settings: Mapping[str, str], config: Config, kinds: Mapping[str, str], traits: ConnectorTraits
) -> Iterator[Mistake]:
    """Yield why rows without an envelope cannot be read, or written."""
    kind = kinds.get(settings.get("connector.class", ""))
    if kind is None:
        return
    alias = flattening.alias_of(settings)
    unplaced = [*_unplaced(settings, alias, kind, traits)]
    if config.source.order is None:
        yield from map(_of_connector, unplaced)
    else:
        yield from _arriving(settings, config, has_place=not any(not p.warning for p in unplaced))
    if config.output is not None and arrival_order.is_flat(settings):
        yield _error(
            arrival_order.AFTER_STATE if alias is None else f"transforms.{alias}",
            "removes the envelope, which records of output topics have",
            "remove it, or the section output",
        )


def _unplaced(
    settings: Mapping[str, str], alias: str | None, kind: str, traits: ConnectorTraits
) -> Iterator[Mistake]:
    """Yield why rows without an envelope say no place in the log."""
    if _is(settings, arrival_order.AFTER_STATE):
        yield Mistake(
            arrival_order.AFTER_STATE,
            "is true: values are rows alone, and nothing says in which order they were changed",
            SetTo(arrival_order.AFTER_STATE, "false", more=flattening.OR_ARRIVAL),
        )
    if alias is not None:
        of_source, of_transaction = positions.fields_of(kind)
        counted = of_transaction if _is(settings, "provide.transaction.metadata") else ()
        wanted = flattening.needed(of_source, counted, traits.container)
        yield from flattening.problems(settings, wanted)


def _arriving(settings: Mapping[str, str], config: Config, *, has_place: bool) -> Iterator[Mistake]:
    """Yield why rows cannot be taken as they arrive, and what that means."""
    for problem in arrival_order.problems(settings, has_place=has_place):
        own = problem.path == arrival_order.SETTING
        yield problem if own else _of_connector(problem)
    if has_place:
        return
    if alias := flattening.alias_of(settings):
        yield from map(_of_connector, flattening.losses(settings, alias))
    from lakemark.converters import registry  # noqa: PLC0415 - slow, and seldom needed

    if registry.has_text_keys(settings, config.source.converter_options()):
        yield _error(
            "key.converter",
            "writes keys as texts: where a row is deleted nothing says which types they have",
            "name the converter that value.converter names",
        )
    if config.database is not None:
        yield Mistake(
            "database",
            f"cannot be set with {arrival_order.SETTING}: what is read from it has no place among"
            " rows that say none",
            "remove the section database; types come with the records' schemas, or from"
            " source.schema_file",
        )


def _converters(settings: Mapping[str, str], config: Config) -> Iterator[Mistake]:
    from lakemark.converters import registry  # noqa: PLC0415 - slow, and seldom needed
    from lakemark.converters.converter import OWN  # noqa: PLC0415 - likewise

    described = config.database is not None or config.source.schema_file is not None
    own = config.source.converter_options()
    for problem in registry.problems(settings, own, described=described):
        yield problem if problem.path.startswith(OWN) else _of_connector(problem)
    if config.output is not None:
        told = config.output.converter_options()
        writer = registry.output_choice(settings, own, format_=config.output.format, told=told)
        if writer is not None:
            yield from registry.output_problems(writer)


def _losses(settings: Mapping[str, str]) -> Iterator[Mistake]:
    skipped = {part.strip().lower() for part in settings.get("skipped.operations", "t").split(",")}
    rows = sorted(skipped & {"c", "u", "d", "r"})
    if rows:
        yield _error(
            "skipped.operations",
            f"skips {', '.join(rows)}: tables cannot equal the source",
            SetTo("skipped.operations", "none"),
        )
    if "t" in skipped:
        yield _warning(
            "skipped.operations",
            "skips truncates (Debezium's default): a truncated table keeps its rows, for a while at"
            " least",
            SetTo("skipped.operations", "none"),
        )
    if settings.get("event.processing.failure.handling.mode", "fail") != "fail":
        yield _warning(
            "event.processing.failure.handling.mode",
            "events that Debezium cannot process are lost without a trace",
            SetTo("event.processing.failure.handling.mode", "fail"),
        )
    if settings.get("errors.tolerance", "none").lower() == "all":
        yield _warning(
            "errors.tolerance",
            "records that Connect cannot write are lost without a trace",
            SetTo("errors.tolerance", "none"),
        )
    policy = settings.get(_POLICY, "delete")
    if "compact" in policy:
        yield _warning(
            _POLICY,
            f"{policy}: compaction removes truncates, and what a paused table still needs",
            SetTo(_POLICY, "delete"),
        )
    if settings.get("sourceinfo.struct.maker"):
        yield _error(
            "sourceinfo.struct.maker",
            "replaces the source block, which holds the position of every change",
            "remove it",
        )


def _modes(settings: Mapping[str, str]) -> Iterator[Mistake]:
    """Report modes in which the connector does not write every value as it is."""
    try:
        modes = HandlingModes.from_connector(settings)
    except ConfigError as error:
        yield _error("handling modes", error.message, error.hint)
        return
    if modes.decimal == "double":
        yield _warning(
            "decimal.handling.mode",
            "double rounds numeric and money to 15 digits",
            SetTo("decimal.handling.mode", "precise"),
        )
    does = TIME_LOSSES.get(modes.time_precision)
    if does:
        yield _warning(
            "time.precision.mode",
            f"{modes.time_precision} {does}",
            SetTo("time.precision.mode", usual_choice(settings, "time.precision.mode")),
        )


def _names_of_columns(settings: Mapping[str, str]) -> Iterator[Mistake]:
    mode = settings.get("field.name.adjustment.mode", "none")
    if mode != "none" and not (restores_names(settings) and propagated_names(settings)):
        yield _warning(
            "field.name.adjustment.mode",
            f"{mode} renames columns: the catalog's names differ from the events'",
            keeping_names(settings),
        )
    rewriting = [
        name
        for name in settings
        if name in {"converters", "post.processors"}
        or name.startswith(("column.mask.", "column.truncate."))
    ]
    if rewriting:
        yield _warning(
            ", ".join(sorted(rewriting)),
            "rewrites values: snapshots read from the database will refuse these tables",
        )


def _snapshots(
    settings: Mapping[str, str], config: Config, traits: ConnectorTraits
) -> Iterator[Mistake]:
    if config.database is None or traits.reads_know_their_place:
        return
    if not settings.get("signal.data.collection"):
        yield _warning(
            "signal.data.collection",
            "is not set: execute-snapshot signals will be rejected",
            "create a signal table and name it there, as Debezium's documentation shows",
        )
    channels = split_list(settings.get("signal.enabled.channels", "source"))
    if settings.get("signal.data.collection") and "source" not in channels:
        yield _warning(
            "signal.enabled.channels",
            "lacks source: Debezium's own incremental snapshots will not work",
            SetTo("signal.enabled.channels", ",".join(["source", *channels])),
        )
