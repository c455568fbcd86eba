"""The checks of ``lakemark validate`` beyond the form of the settings, all of them offline."""

from collections.abc import Iterator, Sequence

from lakemark.connectors import connector
from lakemark.connectors.connector import Connector
from lakemark.connectors.parts import parts_of, shared_prefixes
from lakemark.connectors.registry import database_kind, require_known
from lakemark.kafka.client_settings import java_options, librdkafka_options
from lakemark.settings import cache, own_files
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake


def check(config: Config) -> list[Mistake]:
    """Mistakes and warnings in what the configuration names; nothing is contacted."""
    parts = parts_of(config)
    known = [_of_file(part.config) for part in parts]
    problems: list[Mistake] = []
    for part, (_, of_file) in zip(parts, known, strict=True):
        problems += map(part.mistake, [*of_file, *_of_database(part.config, of_file)])
    read = [connector for connector, _ in known]
    problems += (part.mistake(mistake) for part, mistake in shared_prefixes(parts, read))
    for options in (java_options, librdkafka_options):
        try:
            options(config)
        except InvalidConfig as error:
            problems += error.problems
    problems += _rights(config)
    return problems


def _of_file(config: Config) -> tuple[Connector | None, list[Mistake]]:
    """Return the connector and its problems, where its file is named."""
    if not config.source.connector_file:
        return None, []
    try:
        found = connector.read(config)
    except InvalidConfig as error:
        return None, error.problems
    return found, [*found.problems]


def _of_database(config: Config, known: Sequence[Mistake]) -> Iterator[Mistake]:
    """Yield mistakes in the schema file and the database's address, but for those known."""
    if config.source.schema_file:
        try:
            database_kind(database=config.database).check_file(config.source.schema_file)
        except InvalidConfig as error:
            yield from error.problems
    if config.database and all(problem.path != "database.url" for problem in known):
        try:
            require_known(config.database)
            if set("?%") & set(config.database.url):  # the rest is sound by its form
                database_kind(database=config.database).check_url(config.database)
        except InvalidConfig as error:
            yield from error.problems


def _rights(config: Config) -> Iterator[Mistake]:
    """Files that others can read or write, which should not."""
    for file, why in own_files.bared(config.secret_files()):
        message = f"a secret stands in {file}, and {why}"
        yield Mistake("", message, f"chmod 600 {file}", warning=True)
    for folder, why in cache.trust():
        if not why:
            continue
        message = f"{folder} of the cache is not used: {why}"
        yield Mistake("", message, own_files.HINT, warning=True)
