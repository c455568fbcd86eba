"""The configuration of one pipeline: what can be set, in which form, with which default.

`load` reads the YAML file and the environment and returns a frozen `Config`, or raises one
`InvalidConfig` that lists every mistake. Relative paths are relative to the YAML file.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lakemark.settings import masking
from lakemark.settings.file_secret import FileSecret
from lakemark.settings.layers import (
    ENV_PREFIX,
    InvalidConfig,
    Mistake,
    SettingPath,
    dotted,
    read_layers,
)
from lakemark.settings.masking import Masks
from lakemark.settings.mistakes import explain, shape_of
from lakemark.settings.names import InternalTopics
from lakemark.settings.schema_policy import Behavior, Kind, SchemaPolicy
from lakemark.settings.section import Section
from lakemark.settings.security import SecurityConfig, require_mechanism
from lakemark.settings.table_id import TableId as TableName
from lakemark.settings.units import (
    Address,
    ClientSettings,
    DatabaseUrl,
    Duration,
    ExistingFile,
    FreeMap,
    HttpUrl,
    Location,
    Secret,
    Size,
    SparkSettings,
    TableId,
    TableRegex,
    Text,
    TopicRegex,
    host_port,
    is_header_text,
    is_loopback,
    reveal,
    servers,
    show_duration,
)
from lakemark.settings.verify_config import VerifyConfig

DELTA: Final = "delta"
"""The format of tables."""
_QUALIFIED: Final = 3  # parts of a table's name: topic prefix, schema or database, table
Deletes = Literal["hard", "soft"]
Metadata = Literal["schema_id"]
Engine = Literal["auto", "task-merge", "deletion-vectors", "spark-merge"]


class KafkaConfig(Section):
    """The brokers, and settings passed on to the two Kafka clients as they are."""

    bootstrap_servers: Annotated[str, BeforeValidator(servers)] = Field(
        min_length=1, description="brokers: host:port, several with commas or as a list"
    )
    security: SecurityConfig = SecurityConfig()
    java: ClientSettings = Field({}, description="more settings of the Java client (Spark)")
    librdkafka: ClientSettings = Field({}, description="more settings of librdkafka")
    timeout: Duration = Field(timedelta(seconds=30), description="for one administrative request")

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        require_mechanism(self.security, self.java, self.librdkafka)
        return self


class ConnectConfig(Section):
    """The address of Kafka Connect, and the name of our connector."""

    url: HttpUrl = Field(description="REST address of a worker")
    connector: str = Field(min_length=1, description="name of the connector")
    username: Text | None = Field(None, description="for basic authentication")
    password: Secret | None = Field(None, description="for basic authentication")
    timeout: Duration = Field(timedelta(seconds=10), description="for one request")

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.password is not None and self.username is None:
            raise PydanticCustomError("security", "password is set, so username is needed too")
        return self


class CaptureConfig(Section):
    """A connector, and those of its tables that are read."""

    connect: ConnectConfig | None = None
    connector_file: ExistingFile | None = Field(
        None, description="the connector's JSON, instead of asking Connect"
    )
    tables: list[TableRegex] = Field(
        [], description="full-match regular expressions of schema.table; default: all captured"
    )
    topics: TopicRegex | None = Field(
        None, description="Java regex of topics that a router renames, the signal table's too"
    )
    schema_file: ExistingFile | None = Field(
        None, description="tables' columns, for plain JSON without a database"
    )
    converter: FreeMap = Field(
        {}, description="settings of the converter of records, before the connector's own"
    )
    order: Literal["arrival"] | None = Field(
        None,
        description=(
            "of a row's changes: `arrival` takes them as they stand in their partition, for rows"
            " without an envelope that say no place in the log; unset: by their place in the log"
        ),
    )

    def converter_options(self) -> dict[str, str]:
        """Settings of the converter in clear."""
        return reveal(self.converter)

    def _require_connector(self, ways: str) -> None:
        """Raise a mistake unless there is one way to the connector.

        Args:
            ways: that there are, as the message has them.
        """
        if (self.connect is None) == (self.connector_file is None):
            found = "neither is set" if self.connect is None else "both are set"
            raise PydanticCustomError(
                "connector",
                "exactly one of {ways} is needed, {found}",
                {"ways": ways, "found": found},
            )


class DatabaseConfig(Section):
    """The source database: exact types now, snapshots when asked for."""

    url: DatabaseUrl = Field(
        description="SCHEME://USER@HOST:PORT/DATABASE, the primary;"
        " schemes: postgresql, mysql, mariadb"
    )
    password: Secret | None = Field(None, description="of the user in url")
    connect_timeout: Duration = Field(timedelta(seconds=10), description="for one connection")


class ConnectorConfig(CaptureConfig):
    """One of several connectors, those of its tables that are read, and its database."""

    database: DatabaseConfig | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Connect's address and the connector's name, or an empty text and its file."""
        if self.connect is not None:
            return self.connect.url, self.connect.connector
        return "", str(self.connector_file)

    @model_validator(mode="after")
    def _one_connector(self) -> Self:
        self._require_connector("connect and connector_file")
        return self


class SourceConfig(CaptureConfig):
    """The connector, and those of its tables that are read; or several connectors."""

    watch_interval: Duration = Field(
        timedelta(seconds=30),
        description=(
            "between two looks at the database's catalog for what no event tells; if shorter than "
            "30 s, also at the connector and for created tables"
        ),
    )
    connectors: list[ConnectorConfig] = Field(
        [], description="several connectors, each with its tables and its database, instead of one"
    )

    @model_validator(mode="after")
    def _has_connectors(self) -> Self:
        if not self.connectors:
            self._require_connector(
                "source.connect and source.connector_file (or source.connectors)"
            )
        places = [entry.place for entry in self.connectors]
        twice: dict[SettingPath, str] = {}
        for number, place in enumerate(places):
            first = places.index(place)
            if first < number:
                message = f"names the same connector as source.connectors[{first}]"
                twice["connectors", number] = message
        if twice:
            raise mistakes_in(twice)
        return self


class SchemaChangesConfig(Section):
    """The tables' answer to a change of their source's schema."""

    behavior: Behavior = Field(
        "lenient", description="what is done: see the page on schema changes"
    )
    include: list[Kind] = Field(
        [], description="the kinds of changes that this is done about; default: all"
    )
    exclude: list[Kind] = Field([], description="kinds that are ignored instead")


class TableSchemaChangesConfig(Section):
    """The settings of one table, instead of those of all."""

    behavior: Behavior | None = Field(None, description="instead of lake.schema_changes.behavior")
    include: list[Kind] | None = Field(None, description="instead of lake.schema_changes.include")
    exclude: list[Kind] | None = Field(None, description="instead of lake.schema_changes.exclude")


class TableConfig(Section):
    """The settings of one table, instead of those of all."""

    path: Location | None = Field(None, description="folder of its own")
    deletes: Deletes | None = Field(None, description="instead of lake.deletes")
    engine: Engine | None = Field(None, description="instead of lake.engine")
    schema_changes: TableSchemaChangesConfig = TableSchemaChangesConfig()


class LakeConfig(Section):
    """The Delta tables: ``<path>/<schema>/<table>``."""

    path: Location = Field(description="local path, or s3, s3a, abfs(s), az, gs or hdfs address")
    deletes: Deletes = Field("hard", description="soft keeps deleted rows with _cdc.deleted")
    metadata: list[Metadata] = Field([], description="members that _cdc has beside the usual ones")
    storage_options: FreeMap = Field({}, description="of the object store")
    engine: Engine = Field("auto", description="how rows are written: see the page on tables")
    schema_changes: SchemaChangesConfig = SchemaChangesConfig()
    tables: dict[TableId, TableConfig] = Field({}, description="what differs, by schema.table")

    @property
    def format(self) -> str:
        """Format of all tables, a name of `sink.formats`: there is one so far."""
        return DELTA

    def deletes_of(self, table: str) -> Deletes:
        """Say whether this table keeps deleted rows, marked (soft), or not (hard)."""
        own = self.tables.get(table)
        return (own and own.deletes) or self.deletes

    def engine_of(self, table: str) -> Engine:
        """The write engine asked for; ``auto`` leaves it to lakemark."""
        own = self.tables.get(table)
        return (own and own.engine) or self.engine

    def policy_of(self, table: str) -> SchemaPolicy:
        """Return what this table does when the schema of its source changes."""
        of_all, entry = self.schema_changes, self.tables.get(table)
        own = entry.schema_changes if entry else TableSchemaChangesConfig()
        return SchemaPolicy.of(
            own.behavior or of_all.behavior,
            of_all.include if own.include is None else own.include,
            of_all.exclude if own.exclude is None else own.exclude,
        )

    def options(self) -> dict[str, str]:
        """The storage options in clear, for delta-rs and Spark."""
        return reveal(self.storage_options)


class OutputConfig(Section):
    """Output topics: one for each table, PREFIX.SCHEMA.TABLE, in Debezium's format."""

    topic_prefix: str = Field(
        min_length=1, pattern=r"^[A-Za-z0-9._-]+$", description="of the topics"
    )
    resolve_unavailable: bool = Field(
        default=True, description="put values in for unchanged TOAST columns, where they are known"
    )
    format: Literal["json", "avro"] | None = Field(
        None, description="of keys and values; unset: as the connector's records are"
    )
    converter: FreeMap = Field(
        {}, description="settings of the converter of these topics, before the connector's own"
    )

    def converter_options(self) -> dict[str, str]:
        """Settings of the converter in clear."""
        return reveal(self.converter)


class SnapshotConfig(Section):
    """The reading of tables while the log goes on."""

    chunk_rows: int = Field(
        100_000, ge=1, le=10_000_000, description="rows of a chunk, fewer where rows are wide"
    )
    parallelism: int = Field(4, ge=1, le=1024, description="chunks that are read at once, at most")
    chunk_delay: Duration = Field(timedelta(), description="pause after each chunk of a run")
    window_interval: Duration = Field(
        timedelta(seconds=1), description="between window rows, at most, while a run is active"
    )
    incomplete: Literal["auto", "manual"] = Field(
        "auto",
        description="a captured table whose rows have never all been brought is read by itself "
        "(`auto`: with `database`), or waits for a signal",
    )
    repair_interval: Duration = Field(
        timedelta(minutes=1),
        description="a table that asks for a snapshot, or for some of its rows, again and again is "
        "read by itself so seldom; longer where reading it takes longer",
    )


class StreamConfig(Section):
    """The streaming query. `shards` is fixed once a checkpoint exists."""

    trigger: Duration = Field(
        timedelta(seconds=1),
        description="from one batch to the next; less after a silence and beside a snapshot",
    )
    max_events_per_batch: int = Field(200_000, ge=1, description="bounds memory and latency")
    shards: int = Field(2, ge=1, le=1024, description="of snapshots' state; fixed once started")
    cuts: Literal["off", "transactions"] = Field("off", description="where batches end")
    starting: Literal["earliest", "latest"] = Field(
        "earliest", description="where the first start of a new checkpoint begins"
    )
    stop_grace: Duration = Field(
        timedelta(seconds=20),
        description="a stop waits so long for the batch under way; a second signal ends the wait",
    )
    max_event_bytes: Size = Field(4 * 1024**2, description="a larger event is a dead letter")


class DeadLettersConfig(Section):
    """The number of bad records that are no longer exceptions: the table stops instead.

    It stops when one partition's part of a batch has more than `max_per_batch` bad records and
    they are more than `max_share` of it.
    """

    max_share: float = Field(0.5, ge=0, le=1, description="share of bad records that is borne")
    max_per_batch: int = Field(1000, ge=0, description="so many are borne whatever the share")
    max_record_bytes: Size = Field(11 * 1024**2, description="max.message.bytes of the topic")


class HttpConfig(Section):
    """The page, the state, the metrics and signals over HTTP, while the pipeline runs."""

    bind: Address = Field("127.0.0.1:8780", description="HOST:PORT; port 0 is any; none = off")
    token: Secret | None = Field(None, description="bearer token; needed beyond this machine")
    ready_lag: Duration = Field(timedelta(seconds=60), description="/readyz: furthest behind")
    ready_proved: Duration | None = Field(None, description="/readyz: oldest proof of a table")

    @model_validator(mode="after")
    def _not_open_to_all(self) -> Self:
        if self.token is not None and not self.token.get_secret_value():
            raise PydanticCustomError("token", "http.token is empty: leave it out, or set one")
        if self.token is not None and not is_header_text(self.token.get_secret_value()):
            raise PydanticCustomError(
                "token",
                "http.token has a control character, or a space at an end: no header can hold it",
            )
        if self.bind is None or self.token is not None:
            return self
        host, _ = host_port(self.bind)
        if not is_loopback(host):
            raise PydanticCustomError(
                "token",
                "http.bind {bind} can be reached from other machines, so http.token is needed;"
                " or bind 127.0.0.1",
                {"bind": self.bind},
            )
        return self


class LogConfig(Section):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level")
    format: Literal["console", "json"] = Field("console", description="json for machines")


class Config(Section):
    """One pipeline, as the user set it."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$", description="prefix of lakemark's own topics"
    )
    kafka: KafkaConfig
    source: SourceConfig
    database: DatabaseConfig | None = None
    lake: LakeConfig
    output: OutputConfig | None = None
    snapshot: SnapshotConfig = SnapshotConfig()
    verify: VerifyConfig = VerifyConfig()
    stream: StreamConfig = StreamConfig()
    dead_letters: DeadLettersConfig = DeadLettersConfig()
    checkpoint: Location = Field(description="folder of the query's state, beside the lake")
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    spark: SparkSettings = Field({}, description="more settings of Spark")

    # The other connectors of the pipeline that a part is of: their secrets are hidden by it, too.
    _beside: tuple[ConnectorConfig, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found: dict[SettingPath, str] = {}
        inside = f"{self.checkpoint}/".startswith(f"{self.lake.path}/")
        if inside or f"{self.lake.path}/".startswith(f"{self.checkpoint}/"):
            found[()] = "checkpoint and lake.path must be folders of their own, side by side"
        if self.several:
            found |= self._of_one_connector()
        if found:
            raise mistakes_in(found)
        return self

    def _of_one_connector(self) -> dict[SettingPath, str]:
        """Return settings that have a meaning only where there is one connector."""
        beside: list[SettingPath] = [
            ("source", name) for name in CaptureConfig.model_fields if getattr(self.source, name)
        ]
        if self.database is not None:
            beside.append(("database",))
        message = "cannot be set beside source.connectors: set it for each connector there"
        found = dict.fromkeys(beside, message)
        for table in self.lake.tables:
            if len(TableName.parse(table).parts) < _QUALIFIED:
                found["lake", "tables", table] = (
                    "expected a table such as shop.public.orders: with source.connectors a table's"
                    " name begins with its connector's topic.prefix"
                )
        return found

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Take what another process had: what is said here holds its secrets no more than there."""
        super().__setstate__(state)
        masking.know(self.masks)

    @property
    def several(self) -> bool:
        """Say whether connectors are listed (`source.connectors`), be it a single one.

        Their tables' names begin with their connector's topic prefix.
        """
        return bool(self.source.connectors)

    @property
    def parts(self) -> tuple["Config", ...]:
        """The configurations of pipelines that had each connector alone, in their order.

        All that is not of a connector is the same object in each. It is this configuration where
        there is no list of connectors.
        """
        return self._parts if self.several else (self,)

    @property
    def is_part(self) -> bool:
        """Say whether this is one of the `parts` of several connectors."""
        return bool(self._beside)

    @property
    def connector_names(self) -> tuple[str, ...]:
        """The names of several connectors, in their order; no two are the same.

        Where two have one name Connect's address follows it, or the file's whole path.
        """
        entries = self.source.connectors
        short = [e.connect.connector if e.connect else Path(e.place[1]).name for e in entries]
        whole = [f"{e.place[1]}@{e.place[0]}" if e.connect else e.place[1] for e in entries]
        return tuple(
            name if short.count(name) == 1 else full
            for name, full in zip(short, whole, strict=True)
        )

    @cached_property
    def _parts(self) -> tuple["Config", ...]:
        return tuple(map(self._part, self.source.connectors))

    def _part(self, entry: ConnectorConfig) -> "Config":
        own = {name: getattr(entry, name) for name in CaptureConfig.model_fields}
        source = self.source.model_copy(update={**own, "connectors": []})
        part = self.model_copy(update={"source": source, "database": entry.database})
        part._beside = tuple(self.source.connectors)  # noqa: SLF001 - it is made here
        return part

    @cached_property
    def topics(self) -> InternalTopics:
        """Names of lakemark's own topics."""
        return InternalTopics.of(self.name)

    def spark_options(self) -> dict[str, str]:
        """The settings of Spark in clear."""
        return reveal(self.spark)

    def secrets(self) -> frozenset[str]:
        """Every secret value, for the filters of log lines and messages."""
        found = {value for _, value, secret in self._leaves() if secret and len(value) > 0}
        for url in self._urls():
            password = urlsplit(url).password
            if password:
                found |= {password, unquote(password)}
        return frozenset(found)

    def _leaves(self) -> Iterator[tuple[SettingPath, str, bool]]:
        """Yield every setting as `leaves` does, those of connectors beside this part included."""
        for section in (self, *self._beside):
            yield from leaves(section)

    def _urls(self) -> Iterator[str]:
        """Yield every address that may have a password in it."""
        entries = (*self.source.connectors, *self._beside)
        databases = (self.database, *(entry.database for entry in entries))
        connects = (self.source.connect, *(entry.connect for entry in entries))
        yield from (section.url for section in (*databases, *connects) if section)

    def secret_files(self) -> tuple[Path, ...]:
        """The files that secrets are in, and the key of a certificate."""
        key = self.kafka.security.ssl_key_location
        return (*dict.fromkeys(_files_of(self)), *([key] if key else []))

    def masks(self) -> Masks:
        """Return what takes the secrets out of other programs' text."""
        shown = [value for _, value, secret in self._leaves() if not secret]
        return Masks(self.secrets(), shown)

    def connect_urls(self) -> tuple[str, ...]:
        """The addresses of Connect, none for connectors that are known from files."""
        found = [part.source.connect.url for part in self.parts if part.source.connect]
        return tuple(dict.fromkeys(found))


def mistakes_in(found: Mapping[SettingPath, str]) -> PydanticCustomError:
    """Return the error of a validator that finds fault with several settings of its section.

    Args:
        found: what is wrong, by the setting's path within the section.
    """
    text = "; ".join(f"{dotted(path)} {message}".strip() for path, message in found.items())
    return PydanticCustomError("settings", "{text}", {"text": text, "settings": dict(found)})


def leaves(
    section: BaseModel | Mapping[str, Any], path: SettingPath = ()
) -> Iterator[tuple[SettingPath, str, bool]]:
    """Every setting: its path, its value in clear, and whether that value is a secret."""
    for name, value in _settings_of(section):
        inner = (*path, name)
        if isinstance(value, BaseModel | Mapping) and value:
            yield from leaves(value, inner)
        elif isinstance(value, SecretStr):
            yield inner, value.get_secret_value(), True
        elif isinstance(value, timedelta):
            yield inner, show_duration(value), False
        else:
            text = "" if value is None or value in ([], {}) else str(value)
            if isinstance(value, list):
                text = ", ".join(map(str, value))
            yield inner, text, False


def _settings_of(section: BaseModel | Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield names and values; a list of sections is a mapping by their numbers."""
    for name, value in section.items() if isinstance(section, Mapping) else iter(section):
        sections = isinstance(value, list) and value and isinstance(value[0], BaseModel)
        yield name, dict(enumerate(value)) if sections else value


def _files_of(section: BaseModel | Mapping[str, Any]) -> Iterator[Path]:
    for _, value in _settings_of(section):
        if isinstance(value, BaseModel | Mapping):
            yield from _files_of(value)
        elif isinstance(value, FileSecret):
            yield from value.files


_UNSEEN: Final = (
    "without source.connect snapshots for output topics wait until every partition of their tables "
    "has had a later event"
)


def _cautions(config: Config) -> Iterator[tuple[SettingPath, str, str]]:
    """Yield what can be started like this but should be known: setting, message, what to do."""
    for number, part in enumerate(config.parts):
        if config.output and part.source.connect is None:
            where: SettingPath = ("source", "connectors", number) if config.several else ("output",)
            yield (
                where,
                _UNSEEN,
                "set connect instead of connector_file" if config.several else "set source.connect",
            )
    if config.kafka.security.security_protocol == "SASL_PLAINTEXT":
        yield (
            ("kafka", "security", "security_protocol"),
            "SASL_PLAINTEXT sends the password and all rows unencrypted",
            "use SASL_SSL where the brokers offer it",
        )
    if config.kafka.security.ssl_endpoint_identification == "none":
        yield (
            ("kafka", "security", "ssl_endpoint_identification"),
            "none accepts a certificate of any host name",
            "use https, and certificates that carry the brokers' names",
        )
    if "snapshot" in config.model_fields_set and all(p.database is None for p in config.parts):
        yield (
            ("snapshot",),
            "without a database there is nothing to read snapshots from",
            "add the section database" + " to each connector" * config.several,
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and how it came about.

    Attributes:
        config: the settings.
        origins: place of each setting that is not a default, by its dotted path.
        lines: line of each setting and section in the YAML file, likewise.
        warnings: what the reader should know although it can be started like this.
    """

    config: Config
    origins: dict[str, str]
    lines: dict[str, int]
    warnings: list[Mistake]

    def placed(self, problem: Mistake) -> Mistake:
        """Return a problem with the line of its setting, if the file has that.

        Settings of a connector, whose paths begin with ``connector:``, are in no file of ours.
        """
        setting = problem.path
        if setting.startswith("connector "):  # one of several, by its name
            setting = setting.rpartition(": ")[2]
        return replace(problem, line=self.lines.get(setting, problem.line))


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """Reads the configuration.

    Args:
        path: the YAML file; None when everything is in the environment.
        environ: the environment; default: that of the process. It wins over the file.

    Raises:
        InvalidConfig: with every mistake, its place and what is expected.
    """
    return load_with_origins(path, environ).config


def load_with_origins(path: Path | None, environ: Mapping[str, str] | None = None) -> Loaded:
    """As `load`, and where each value came from.

    Raises:
        InvalidConfig: with every mistake, its place and what is expected.
    """
    layers = read_layers(
        path,
        os.environ if environ is None else environ,
        shape=lambda setting: shape_of(Config, setting),
        sections=list(Config.model_fields),
    )
    source = path.name if path else f"the environment ({ENV_PREFIX}…)"
    try:
        config = Config.model_validate(layers.values, context={"base": layers.base})
    except ValidationError as error:
        layers.problems += explain(error, Config, layers, file=path)
    else:
        layers.problems += [
            Mistake(dotted(path), message, hint, layers.line_of(path), warning=True)
            for path, message, hint in _cautions(config)
        ]
    mistakes = [problem for problem in layers.problems if not problem.warning]
    if mistakes:
        mistakes.sort(key=lambda problem: (problem.line is None, problem.line or 0))
        raise InvalidConfig(mistakes, source=source)
    masking.know(config.masks)
    origins = {dotted(setting): origin for setting, origin in layers.origins.items()}
    lines = {dotted(setting): line for setting, line in layers.lines.items()}
    return Loaded(config, origins, lines, layers.problems)
