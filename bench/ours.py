"""lakemark itself as a contestant: `lakemark run` with one of its write engines."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake

from bench.checks import read_delta
from bench.events import AVRO, COLUMNS, MARIADB, POSTGRES, SCHEMA, Form
from bench.runs import Batch, Line, Run, Task, execute
from lakemark.connectors.postgres import positions as lsns
from lakemark.sink.delta import delta_rs
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.schema_evolution import TARGET_FILE_BYTES
from lakemark.sink.names import CDC
from lakemark.sink.row_images import cdc_type
from stack.kafka import Kafka
from stack.processes import StackError

ENGINES: Final = (TASK_MERGE, DELETION_VECTORS)
SIDES: Final = ("key", "value")
CONNECTORS: Final = {
    "postgresql": {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
    },
    "mariadb": {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.include.list": MARIADB.schema,
        "provide.transaction.metadata": "true",
    },
}
"""The settings of each product's connector that the others have not."""


IN_JSON: Final = {
    **{f"{side}.converter": "org.apache.kafka.connect.json.JsonConverter" for side in SIDES},
    **{f"{side}.converter.schemas.enable": "false" for side in SIDES},
    "value.converter.decimal.format": "NUMERIC",
}
"""The settings of a connector that writes JSON without schemas."""


def in_avro(registry: str) -> dict[str, str]:
    """The settings of a connector that writes Avro."""
    return {
        **{f"{side}.converter": "io.confluent.connect.avro.AvroConverter" for side in SIDES},
        **{f"{side}.converter.schema.registry.url": registry for side in SIDES},
    }


@dataclass(frozen=True, slots=True)
class Lakemark:
    """lakemark with one engine."""

    engine: str
    form: Form = POSTGRES

    @property
    def who(self) -> str:
        """Its name with the engine's, and with the product's whose events it reads."""
        of = f", {self.form.label}" if self.form.label else ""
        return f"lakemark-{self.engine}{of}"

    def fill(self, task: Task, rows: pa.RecordBatchReader) -> None:
        """As `fill` does it.

        Raises:
            StackError: events of another product than PostgreSQL are meant to fill it.
        """
        if self.form is not POSTGRES:
            raise StackError("tables with rows before the first event are PostgreSQL's alone")
        fill(folder(task), rows)

    def run(self, task: Task) -> Run:
        """Runs to the end of the topic."""
        config = write_config(
            task.home,
            task.kafka,
            [task.table],
            max_events=task.limit,
            memory=task.memory,
            engine=self.engine,
            form=self.form,
            database=task.database,
            registry=task.registry if self.form is AVRO else "",
        )
        return run_lakemark(config, task.home, who=self.who)

    def read(self, task: Task) -> tuple[pa.Table, float]:
        """By delta-rs."""
        return read_delta(folder(task))


def fill(path: str, rows: pa.RecordBatchReader) -> None:
    """Writes the files as a snapshot leaves them, with a position before the first event's."""
    kind = rows.schema.append(pa.field(CDC, cdc_type(deletes="hard")))
    delta_rs.ensure(path, kind, key=["id"])
    marked = pa.RecordBatchReader.from_batches(kind, map(stamped, rows))
    write_deltalake(path, marked, mode="append", target_file_size=TARGET_FILE_BYTES)


def folder(task: Task) -> str:
    """Where lakemark keeps the table."""
    return str(task.home / "lake" / task.form.schema / task.table)


def stamped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with lakemark's own column."""
    count = rows.num_rows
    at = pa.scalar(datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC"))
    cdc = [
        pa.repeat(pa.scalar(lsns.pack(0, 1, 0), pa.binary()), count),
        pa.repeat(pa.scalar("r"), count),
        pa.repeat(at, count),
        pa.nulls(count, pa.list_(pa.string())),
        pa.nulls(count, pa.binary()),
    ]
    own = pa.StructArray.from_arrays(cdc, fields=list(cdc_type(deletes="hard")))
    return rows.append_column(CDC, own)


def run_lakemark(
    config: Path,
    work: Path,
    *,
    module: str = "lakemark",
    who: str = "lakemark",
    until: Callable[[int], bool] | None = None,
) -> Run:
    """Runs lakemark, or a variant of it.

    Args:
        config: its configuration.
        work: where its log goes.
        module: what is run.
        who: its name in the report.
        until: whether so many events are all; None runs it with `--once` over what is there.
    """

    log, arguments = work / "lakemark.log", ["run", "-c", str(config)]
    if until is None:
        used, lines = execute(module, *arguments, "--once", log=log)
    else:
        used, lines = execute(
            module, *arguments, log=log,
            until=lambda found: until(sum(batch.events for batch in batches_of(found))),
        )  # fmt: skip
    return Run(who, used, [batch for batch in batches_of(lines) if batch.events])


def batches_of(lines: Iterable[Line]) -> list[Batch]:
    """The batches that lakemark's log tells of."""
    return [
        Batch(datetime.fromisoformat(line["timestamp"]).timestamp(), line["events"])
        for line in lines
        if line.get("event") == "batch.done"
    ]


def write_config(
    work: Path,
    kafka: Kafka,
    tables: Iterable[str],
    *,
    max_events: int,
    memory: str,
    engine: str = "auto",
    spark: Mapping[str, str] | None = None,
    form: Form = POSTGRES,
    database: str = "",
    registry: str = "",
) -> Path:
    """Writes a lakemark configuration with its connector and schema file; returns its path.

    Calling it again with other limits keeps lake and checkpoint: the next run goes on there. With
    a database its catalog says what the tables' types are, and there is no schema file; with a
    registry each record says it, in Avro.
    """
    work.mkdir(parents=True, exist_ok=True)
    connector = {
        **CONNECTORS[form.connector],
        "topic.prefix": form.name,
        "skipped.operations": "none",
        "tombstones.on.delete": "false",
        **(in_avro(registry) if registry else IN_JSON),
    }
    schemas = {f"{SCHEMA}.{table}": {"key": ["id"], "columns": COLUMNS} for table in tables}
    config = {
        "name": form.name,
        "kafka": {"bootstrap_servers": kafka.bootstrap},
        "source": {
            "connector_file": "connector.json",
            **({} if database or registry else {"schema_file": "tables.yaml"}),
        },
        **(
            {"database": {"url": database}, "snapshot": {"incomplete": "manual"}}
            if database
            else {}
        ),
        "lake": {"path": "lake", "engine": engine},
        "stream": {"max_events_per_batch": max_events},
        "checkpoint": "checkpoint",
        "log": {"format": "json"},
        "spark": {"spark.driver.memory": memory, **(spark or {})},
    }
    path = work / "lakemark.yaml"  # JSON is YAML
    for file, data in (("connector.json", connector), ("tables.yaml", schemas), (path, config)):
        (work / file).write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path
