"""A pipeline under test: a database of the stack, its connector, `lakemark run`, lake, comparison."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from confluent_kafka import Message
from deltalake import DeltaTable

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from lakemark.state.checkpoint import LOCAL
from lakemark.supervisor import RUNNER
from stack.compare import Comparer, Comparison, whole
from stack.lakemark_process import Event, LakemarkProcess, write_config
from stack.local import Database
from stack.processes import wait_for
from tests.kit.fork_server import ForkedLakemark

# Deadlines, not durations: several times what a loaded machine with two cores needs.
EQUAL_S = 480.0
STATE_S = 480.0
ONCE_S = 600.0

# Short runs: a JVM that compiles once is up and through its first batches in two thirds of the time,
# and Spark's own compiler gives nothing back. `./dev demo` and the cluster have both.
SPARK = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms768m -Xmn384m -XX:MetaspaceSize=256m"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Several pipelines share two cores: with back-to-back batches they would only wait for each other.
STREAM = {"trigger": "1s", "shards": 2}
# A table that is read again and again need not rest in a test; a run's answer is in the state by then.
SNAPSHOT = {"repair_interval": "5s"}


@dataclass
class Running:
    """One pipeline; leaving the context kills its lakemark.

    Attributes:
        database: the source, in its own database.
        directory: where lake, checkpoint, configuration and log are.
        overrides: sections of lakemark's configuration.
        spark: whether Spark runs the batches; without it a run starts in a tenth of the time.
    """

    database: Database
    directory: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)
    spark: bool = False
    lakemark: LakemarkProcess = field(init=False)

    def __post_init__(self) -> None:
        own = {"spark": SPARK, "stream": STREAM, **self.overrides}
        sections = {**own, "snapshot": SNAPSHOT | own.get("snapshot", {})}
        config = write_config(self.database, self.directory, sections)
        if self.spark:
            self.lakemark = LakemarkProcess(config)
        else:
            self.lakemark = ForkedLakemark(config)
            self.lakemark.environment[RUNNER] = LOCAL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lakemark.kill()

    def tables(self) -> list[str]:
        """All tables of the source."""
        return self.database.tables()

    def comparer(self, *tables: str) -> Comparer:
        """What compares these tables, or all."""
        config = self.lakemark.config
        return Comparer(self.database, config=config, tables=tables or self.tables())

    def compare(self, *tables: str) -> Comparison:
        """Compare these tables, or all, as they are now."""
        return self.comparer(*tables).compare()

    def wait_equal(self, *tables: str, deadline_s: float = EQUAL_S) -> Comparison:
        """Wait until these tables, or all, equal the source."""
        return self.comparer(*tables).wait_until_equal(self.lakemark, deadline_s=deadline_s)

    def once(self) -> None:
        """Run with `--once`, which must end with exit code 0."""
        code = self.lakemark.run_once(ONCE_S)
        assert code == 0, f"exit code {code}\n{self.lakemark.log_tail(40)}"

    def equal_after_once(self, *tables: str) -> None:
        """Run with `--once` and require the tables to be equal right after it."""
        self.once()
        found = self.compare(*tables)
        assert found.is_equal, str(found)

    def table(self, table: str) -> DeltaTable:
        """The Delta table."""
        return DeltaTable(folder_of(load(self.lakemark.config).lake, table))

    def rows(self, table: str) -> pa.Table:
        """All rows of the Delta table, `_cdc` and marked ones included."""
        return whole(self.table(table))

    def version(self, table: str) -> int:
        """Version of the Delta table, -1 if there is none."""
        path = folder_of(load(self.lakemark.config).lake, table)
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1

    def wait_progress(self, table: str, what: str, holds: Callable[[Event], bool]) -> Event:
        """Wait until this is true of a table's progress record."""
        return self.lakemark.wait_for_progress(table, what, holds, deadline_s=STATE_S)

    def wait_state(self, table: str, state: str) -> Event:
        """Wait until a table is in a state; one that streams does not say so."""
        return self.wait_progress(table, state, lambda r: r.get("state", "streaming") == state)

    def wait_captured(self, table: str, query: str = "SELECT count(*) FROM {}") -> None:
        """Wait until Kafka has at least as many records of a table as a query counts."""
        kafka, topic = self.database.stack.kafka, self.database.topic(table)
        ((count,),) = self.database.execute(query.format(table))
        wait_for(
            lambda: topic in kafka.topics() and sum(kafka.end_offsets(topic).values()) >= count,
            STATE_S,
            f"{count} records of {topic}",
        )

    def wait_drained(self) -> None:
        """Wait until everything committed so far is in Kafka: a last change has come through."""
        kafka = self.database.stack.kafka
        mark = str(uuid.uuid4())
        self.database.execute("INSERT INTO debezium_signal VALUES (%s, 'mark', '{}')", [mark])
        signals = kafka.reader(self.database.topic("debezium_signal"))

        def arrived() -> bool:
            return any(mark.encode() in (record.value() or b"") for record in signals.records())

        try:
            wait_for(arrived, STATE_S, "the last change to arrive in Kafka")
        finally:
            signals.close()

    def dead_letters(self) -> list[Message]:
        """All dead letters so far."""
        kafka, topic = self.database.stack.kafka, f"{self.database.name}.dead-letters"
        count = sum(kafka.end_offsets(topic).values())
        return kafka.read(topic, count=count) if count else []


def header(message: Message, name: str) -> str:
    """A header of lakemark's."""
    return dict(message.headers() or [])[f"lakemark.{name}"].decode()
