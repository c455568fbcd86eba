"""`lakemark prepare`: what connector and lakemark need, as scripts. Changes nothing.

1. the connector says what it captures: by Connect, or by its JSON file;
2. the catalog says which tables these are, where `database` is configured and answers, and where
   it shows all tables; else the connector's lists do;
3. its settings are mended by the doctor's rules (`prepared_settings`);
4. the database's own folder writes the statements (`Database.script`), `acl_script` the rights.

The same connector, settings and catalog give the same bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lakemark.connectors import connector as connectors
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import Database, DatabaseAccess, Examination
from lakemark.connectors.preparation import Script, ToPrepare, names_in, tables_in
from lakemark.connectors.registry import CONNECTORS, database_kind, database_of, traits_of
from lakemark.errors import ConfigError, LakemarkError
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.prepare.acl_script import acl_script
from lakemark.ops.prepare.comments import comment
from lakemark.ops.prepare.prepared_settings import PreparedSettings, prepared
from lakemark.ops.question import Question
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake

DEADLINE_S: Final = 60.0
"""For everything that Connect, or the database, has to say; the worst case is as in `doctor`."""

SCRIPT: Final = "database.sql"
CONNECTOR: Final = "connector.json"
REASONS: Final = "connector.txt"
RIGHTS: Final = "kafka-rights.sh"

_LOOPBACK: Final = "localhost:9092"
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]|^[._-]+")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files, and what they leave open.

    Attributes:
        files: contents by name, in the order in which they are used.
        left: what no script can do.
        catalog: why the catalog was not read; empty if it was.
    """

    files: Mapping[str, str]
    left: tuple[Finding, ...]
    catalog: str


def chosen(config: Config, name: str | None, file: Path | None = None) -> Config:
    """Return the configuration of a pipeline that had one of the connectors alone.

    Args:
        config: ours.
        name: of the connector, where there are several.
        file: the connector's JSON; it may have the connector's name, or be the entry's own.

    Raises:
        InvalidConfig: there is no such connector, or none is named and there are several.
    """
    if not config.several:
        connect, own_file = config.source.connect, config.source.connector_file
        own = connect.connector if connect else own_file.name if own_file else ""
        if name not in (None, own):
            raise _unknown(name, [own])
        return config
    parts = dict(zip(config.connector_names, config.parts, strict=True))
    names = [name] if name else [connectors.read_file(file)[0], file.name] if file else []
    if not names and len(parts) == 1:
        return config.parts[0]
    known = [one for one in names if one in parts]
    if not known:
        raise _unknown(names[0] if names else None, [*parts])
    return parts[known[0]]


def _unknown(name: str | None, known: Sequence[str]) -> InvalidConfig:
    message = f"{name!r} is none of the connectors" if name else "there are several connectors"
    hint = f"choose one of them with --connector: {', '.join(known)}"
    return InvalidConfig([Mistake("source.connectors", message, hint)])


def config_of(file: Path, config: Config | None) -> Config:
    """Return a configuration whose connector is that of a JSON file.

    Args:
        file: the connector's, as Connect takes it.
        config: the pipeline's, with one connector; None where there is none yet: then the pipeline
            has the name of the connector's topics, and the database nobody asks.

    Raises:
        InvalidConfig: the file is no connector's.
    """
    if config is not None:
        source = config.source.model_copy(update={"connect": None, "connector_file": file})
        return config.model_copy(update={"source": source})
    _, settings = connectors.read_file(file)
    brokers = settings.get("schema.history.internal.kafka.bootstrap.servers", _LOOPBACK)
    return Config.model_validate(
        {
            "name": _ODD.sub("-", settings.get("topic.prefix", "")).strip("-._") or "lakemark",
            "kafka": {"bootstrap_servers": _LOOPBACK if "${" in brokers else brokers},
            "source": {"connector_file": str(file.absolute())},
            "database": {"url": traits_of(settings).example},
            "lake": {"path": "./lake"},
            "checkpoint": "./checkpoint",
        },
        context={"base": Path.cwd()},
    )


def prepare(config: Config, *, asks: bool, deadline_s: float = DEADLINE_S) -> Prepared:
    """Return everything that is to be run, and what is left to the reader.

    Args:
        config: of the pipeline.
        asks: whether the database may be asked.
        deadline_s: for what Connect, or the database, has to say.

    Raises:
        DependencyError: Connect does not answer.
        InvalidConfig: the connector is unknown, or one of a database that lakemark does not read.
    """
    question = Question("Kafka Connect", lambda: connectors.read(config))
    connector = question.result(deadline_s).alone()
    if connector.settings.get("connector.class", "") not in CONNECTORS:
        raise InvalidConfig([p for p in connector.problems if "connector.class" in p.path])
    examined, unread = _examined(config, connector, deadline_s) if asks else (None, _UNASKED)
    kind = database_kind(connector.settings, config.database)
    first = prepared(connector.settings, config)
    wanted = _wanted(first.settings, config, examined)
    ready = prepared(connector.settings, config, kind.wanted_settings(wanted))
    return Prepared(_files(ready, config, examined, kind, unread), ready.left, unread)


_UNASKED: Final = "no database is configured that could be asked"


def _examined(
    config: Config, connector: Connector, deadline_s: float
) -> tuple[Examination | None, str]:
    """Return what the doctor says of the database; None, and why, where it does not answer."""
    if config.database is None:
        return None, _UNASKED
    try:
        modes = HandlingModes.from_connector(connector.settings)
    except ConfigError:  # it is mended by what is written
        modes = HandlingModes()
    database = database_of(DatabaseAccess(config.database, modes, connector.settings))
    question = Question(
        "the database", lambda: database.examine(connector, streams=False, chosen=True)
    )
    try:
        return question.result(deadline_s), ""
    except LakemarkError as error:
        return None, error.message


def _wanted(settings: Mapping[str, str], config: Config, examined: Examination | None) -> ToPrepare:
    connector = connectors.parse(settings, config=config).alone()
    traits = connector.traits
    signal = connector.signal_table
    tables: Sequence[str] | None = tables_in(settings.get("table.include.list", ""))
    if examined is not None and not traits.hides_tables:
        tables = examined.tables
    captured = None if tables is None else tuple(t for t in tables if t != signal)
    return ToPrepare(
        settings=settings,
        bootstrap=config.kafka.bootstrap_servers,
        user=_user(config),
        tables=captured,
        chosen=None if captured is None else tuple(t for t in captured if t in connector.tables),
        containers=names_in(settings.get(f"{traits.container}.include.list", "")),
        reads_rows=connector.reads_rows,
        findings=examined.findings if examined else (),
    )


def _user(config: Config) -> str:
    url = config.database.url if config.database else ""
    return unquote(urlsplit(url).username or "") or "lakemark"


# -- the files -------------------------------------------------------------------------------------


def _files(
    ready: PreparedSettings,
    config: Config,
    examined: Examination | None,
    kind: type[Database],
    unread: str,
) -> dict[str, str]:
    wanted = _wanted(ready.settings, config, examined)
    connector = connectors.parse(ready.settings, config=config).alone()
    return {
        SCRIPT: _sql(kind.script(wanted), unread, connector),
        RIGHTS: acl_script(config, connector, wanted.homes),
        CONNECTOR: json.dumps(dict(ready.settings), indent=2, ensure_ascii=False) + "\n",
        REASONS: _reasons(ready, connector),
    }


def _sql(script: Script, unread: str, connector: Connector) -> str:
    title = f"{connector.kind} for the connector of {connector.topic_prefix}, and for lakemark."
    source = f"The catalog was not read ({unread})." if unread else "The catalog was read."
    head = [
        comment("--", title),
        *(comment("--", line) for line in script.head),
        comment("--", source),
    ]
    said = [
        "\n".join(filter(None, [comment("--", statement.why), statement.sql]))
        for statement in script.statements
    ]
    return "\n\n".join(["\n".join([*head, *script.before]), *said]) + "\n"


def _reasons(ready: PreparedSettings, connector: Connector) -> str:
    lines = [
        f"{CONNECTOR}: the settings of the connector of {connector.topic_prefix}, for Connect's",
        "PUT /connectors/NAME/config. What is not named here is as it was.",
    ]
    for changed in ready.changed:
        was = f" (was {changed.before})" if changed.before else ""
        lines += ["", f"{changed.name}: {changed.value}{was}", comment("   ", changed.why)]
    if ready.left:
        lines += ["", "Left to you:"]
    for finding in ready.left:
        lines += ["", comment(" ", f"{finding.subject}: {finding.reason}")]
        lines += [comment("   ", f"→ {finding.mend}")] if finding.mend else []
    return "\n".join(lines) + "\n"
