"""The effort that a change of a setting takes to have an effect: a rule for each setting; pure.

takes            meaning
---------------  ----------------------------------------------------------------------------------
live             a command changes it while the pipeline runs; a restart makes it the default
restart          `lakemark run` is started again; checkpoint and tables go on as they are
new checkpoint   the checkpoint was made for the old value, or has what the setting decided
re-snapshot      a restart, and then tables lack rows that only a snapshot brings
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from lakemark.settings.config import ConnectorConfig

CONNECTORS: Final = "source.connectors"


class Takes(StrEnum):
    """The effort of a change, from least to most; the table is in the module's docstring."""

    LIVE = "live"
    RESTART = "restart"
    NEW_CHECKPOINT = "new checkpoint"
    RESNAPSHOT = "re-snapshot"


@dataclass(frozen=True, slots=True)
class Rule:
    """The effort that a change of some settings takes.

    Attributes:
        settings: dotted path; ``*`` stands for any text, names of tables among it.
        takes: what it takes.
        note: what to do or to know; empty where `takes` says it all.
        to: the rule holds for a change to this value only; empty: for every change.
    """

    settings: str
    takes: Takes
    note: str = ""
    to: str = ""


_LIVE, _RESTART = Takes.LIVE, Takes.RESTART
_CHECKPOINT, _RESNAPSHOT = Takes.NEW_CHECKPOINT, Takes.RESNAPSHOT

_AFRESH: Final = "set checkpoint to a new folder, then snapshot all tables"
_TABLES: Final = "restart, then snapshot the tables that are new; those that leave stay as they are"
_CONNECTORS: Final = (
    f"{_TABLES}. From or to source.connect all tables have other names, with or without their "
    f"connector's topic.prefix: {_AFRESH}"
)
_MOVED: Final = "move the Delta tables there before the restart, or snapshot them after it"
_NOT_BACK: Final = "from spark-merge and deletion-vectors it goes back by `lakemark table rebuild`"
_HARD: Final = "rows marked deleted stay until a snapshot sweeps them"
_SOFT: Final = "from then on deleted rows are kept, marked; earlier ones are gone"
_METADATA: Final = "rows have it from their next change on; null where they had none"
_LATER: Final = "changes from then on; `lakemark table rebuild` makes up for earlier ones"
_OUTPUT: Final = "the topics begin with the events from then on; a snapshot brings the rows before"
_VERIFY: Final = (
    "`lakemark snapshot set verify --rows-per-second N` for all runs of verification by itself, "
    "until this setting is another one; a restart makes it the default"
)
_RUN: Final = "`lakemark snapshot set RUN {}` for a run under way; a restart for later ones"

RULES: Final = (
    Rule("name", _CHECKPOINT, f"lakemark's own topics are others then: {_AFRESH}"),
    Rule(
        "kafka.bootstrap_servers",
        _RESTART,
        "the same cluster at another address; the offsets of another cluster are others, and a "
        f"pipeline moves there with a new checkpoint: {_AFRESH}",
    ),
    Rule("kafka.*", _RESTART),
    Rule(
        "source.connect.connector",
        _CHECKPOINT,
        f"another connector has topics and positions of its own: {_AFRESH}",
    ),
    Rule("source.connect", _RESTART),
    Rule("source.connect.*", _RESTART),
    Rule("source.connector_file", _RESTART, "it must describe the same connector"),
    Rule("source.tables", _RESNAPSHOT, _TABLES),
    Rule("source.topics", _RESNAPSHOT, _TABLES),
    Rule("source.schema_file", _RESTART),
    Rule("source.converter", _RESTART),
    Rule("source.converter.*", _RESTART),
    Rule(
        "source.order",
        _CHECKPOINT,
        "rows have positions of the other order: another name and another lake.path, too",
    ),
    Rule("source.watch_interval", _RESTART),
    Rule(CONNECTORS, _RESNAPSHOT, _CONNECTORS),
    Rule("database", _RESTART, "it must be the database that the connector reads"),
    Rule("database.url", _RESTART, "it must be the database that the connector reads"),
    Rule("database.*", _RESTART),
    Rule("lake.path", _RESNAPSHOT, _MOVED),
    Rule("lake.deletes", _RESNAPSHOT, _HARD, to="hard"),
    Rule("lake.deletes", _RESTART, _SOFT),
    Rule("lake.metadata", _RESTART, _METADATA),
    Rule("lake.storage_options", _RESTART),
    Rule("lake.storage_options.*", _RESTART),
    Rule("lake.engine", _RESTART, _NOT_BACK),
    Rule("lake.schema_changes.*", _RESTART, _LATER),
    Rule("lake.tables", _RESTART),
    Rule("lake.tables.*.path", _RESNAPSHOT, _MOVED),
    Rule("lake.tables.*.deletes", _RESNAPSHOT, _HARD, to="hard"),
    Rule("lake.tables.*.deletes", _RESTART, _SOFT),
    Rule("lake.tables.*.engine", _RESTART, _NOT_BACK),
    Rule("lake.tables.*.schema_changes.*", _RESTART, _LATER),
    Rule("output", _RESTART, _OUTPUT),
    Rule("output.topic_prefix", _RESTART, _OUTPUT),
    Rule("output.*", _RESTART),
    Rule("snapshot.chunk_rows", _LIVE, _RUN.format("--chunk-rows N")),
    Rule("snapshot.parallelism", _LIVE, _RUN.format("--parallelism N")),
    Rule("snapshot.chunk_delay", _LIVE, _RUN.format("--delay TIME")),
    Rule("snapshot.window_interval", _RESTART),
    Rule("snapshot.repair_interval", _RESTART),
    Rule("snapshot.incomplete", _RESTART),
    Rule("verify.rows_per_second", _LIVE, _VERIFY),
    Rule("verify.*", _RESTART),
    Rule(
        "stream.shards",
        _CHECKPOINT,
        f"the operator's state is divided by it; the old one is refused: {_AFRESH}",
    ),
    Rule(
        "stream.starting",
        _CHECKPOINT,
        "says where a new checkpoint begins; one that exists goes on from its offsets",
    ),
    Rule("stream.*", _RESTART),
    Rule(
        "dead_letters.max_record_bytes",
        _RESTART,
        "own topics that exist need as much in max.message.bytes: the start names the command",
    ),
    Rule("dead_letters.*", _RESTART),
    Rule(
        "checkpoint",
        _CHECKPOINT,
        "move the folder there while lakemark is stopped, to go on with it; else it begins anew: "
        "then snapshot all tables",
    ),
    Rule("http.*", _RESTART),
    Rule("log.*", _RESTART),
    Rule("spark", _RESTART),
    Rule("spark.*", _RESTART),
)
"""The first that fits counts."""


_ENTRY: Final = re.compile(
    rf"{re.escape(CONNECTORS)}\[.*?\]\.(?=(?:{'|'.join(ConnectorConfig.model_fields)})(?:\.|$))"
)


def of_connector(setting: str) -> tuple[str, str]:
    """Return the entry of a setting of one of several connectors, and the setting of a single one.

    The entry is the beginning of the path, with its last dot; empty for all other settings.
    """
    entry = _ENTRY.match(setting)
    if entry is None:
        return "", setting
    own = setting[entry.end() :]
    return entry[0], own if own.startswith("database") else f"source.{own}"


def rule_of(setting: str, *, to: str = "") -> Rule:
    """Return the rule of a setting.

    Args:
        setting: its dotted path; one of several connectors has the rules of a single one.
        to: the value that it is changed to, as text.

    Raises:
        LookupError: there is none: a setting was added without one.
    """
    _, alone = of_connector(setting)
    for rule in RULES:
        if fnmatchcase(alone, rule.settings) and rule.to in ("", to):
            return rule
    raise LookupError(f"no rule says what a change of {setting} takes")
