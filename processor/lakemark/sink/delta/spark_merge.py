"""The Spark engine: the same write sets and rules by Delta's MERGE, for tables beyond one task.

Tables come to it by `adopt` and do not go back by themselves: they get deletion vectors, which
task merge cannot write and pyarrow readers refuse. The write set arrives as files that tasks have
staged beside the table (`staging`); the driver handles SQL text only.

Exactly once per (app id, version), in this order:

1. look up what the table has recorded for the app id: as far as `version`, nothing is done;
2. run the statement in a session of its own whose settings name (app id, version): Delta records
   them in the commit, and skips the statement if a racing writer has recorded them meanwhile;
3. unset these settings, however the statement ended: left behind, they would make the next
   statement of the session vanish without a word;
4. after a conflict with another writer, begin again at 1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type

from lakemark.errors import TableError
from lakemark.model.evolution import Evolution
from lakemark.sink.delta import merge_sql, schema_evolution
from lakemark.sink.delta.commits import Options, is_adopted, open_table, retried, size_of
from lakemark.sink.delta.engines import DELETION_VECTORS, ENGINE, SPARK_MERGE
from lakemark.sink.delta.failures import Conflict, classified, told
from lakemark.sink.delta.staging import StagedPart, discard
from lakemark.sink.names import CDC, quoted
from lakemark.sink.table_sink import MergeResult, SchemaPlan
from lakemark.sink.write_set import Shape

_APP: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_NOTE: Final = "spark.databricks.delta.commitInfo.userMetadata"
_SETTINGS: Final = {
    # Staged files never change, so the source need not be copied before it is read twice.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default, INT96, is nanoseconds to pyarrow and delta-rs: years before 1677 and after
    # 2262, the clamped infinities among them, come out as other instants without an error.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# A new session starts from the application's settings: these may have been set since.
_INHERITED: Final = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
_VIEW: Final = "lakemark_write_set"
# How Delta's exceptions are named that mean: somebody else committed first.
_CONFLICTS: Final = ("DELTA_CONCURRENT", "ConcurrentModification", "Concurrent", "ProtocolChanged",
                     "MetadataChanged")  # fmt: skip


def merge(
    spark: SparkSession,
    path: str,
    parts: Sequence[StagedPart],
    *,
    deletes: str,
    app_id: str,
    version: int,
    storage_options: Options = None,
) -> MergeResult:
    """Applies a staged write set in one commit, exactly once per (app_id, version).

    The staged files are removed afterwards. Without rows nothing is committed.

    Args:
        spark: any session of the application; the statement runs in one of its own.
        path: folder of a table that was adopted.
        parts: what `staging.stage` returned, for all parts.
        deletes: `hard` or `soft`.
        app_id: ``<query id>/<table>/<step>``.
        version: batch id.
        storage_options: of delta-rs, for looking at the log.

    Raises:
        TableError: `engine-mismatch` (adopt the table first), `table-missing`, `lake-refused` …
        DependencyError: `lake-unavailable`, `lake-forbidden`, `lake-full`, `lake-busy`.
    """
    filled = [part for part in parts if part.rows]
    if not filled:
        return _sized(spark, path, _existing(path, storage_options), MergeResult())
    shape = reduce(Shape.joined, (part.shape for part in filled))

    def run(session: SparkSession) -> MergeResult:
        files = [f"{path.rstrip('/')}/{part.file}" for part in filled]
        session.read.parquet(*files).createOrReplaceTempView(_VIEW)
        try:
            counts = session.sql(_statement(path, shape, filled, deletes)).collect()
        finally:
            session.catalog.dropTempView(_VIEW)
        if not counts:  # recorded by another writer since the look-up
            return MergeResult(skipped=True)
        found = counts[0]
        return MergeResult(
            inserted=int(found["num_inserted_rows"]),
            updated=int(found["num_updated_rows"]),
            deleted=int(found["num_deleted_rows"]),
        )

    note = next((part.note for part in filled), "")
    result = _once(
        spark, path, run, app_id=app_id, version=version, options=storage_options, note=note
    )
    discard(path, filled, storage_options)
    return result


def truncate(
    spark: SparkSession,
    path: str,
    position: bytes,
    *,
    deletes: str,
    app_id: str,
    version: int,
    storage_options: Options = None,
) -> MergeResult:
    """Removes, or marks deleted, the rows below a truncate; see `delta_rs.truncate`.

    Raises:
        TableError, DependencyError: as `merge`.
    """
    below = f"({merge_sql.below_truncate(position)})"
    target = f"delta.{quoted(path)}"

    def run(session: SparkSession) -> MergeResult:
        statement = f"DELETE FROM {target} WHERE {below}"  # noqa: S608
        if deletes == "soft":
            kind: Any = session.read.format("delta").load(path).schema[CDC].dataType
            cdc = merge_sql.truncated(kind.fieldNames(), position)
            alive = "not coalesce(_cdc['deleted'], false)"
            statement = f"UPDATE {target} SET {quoted(CDC)} = {cdc} WHERE {below} AND {alive}"  # noqa: S608
        counts = session.sql(statement).collect()
        if not counts:  # recorded by another writer since the look-up
            return MergeResult(skipped=True)
        rows = int(counts[0]["num_affected_rows"])
        return MergeResult(updated=rows) if deletes == "soft" else MergeResult(deleted=rows)

    return _once(spark, path, run, app_id=app_id, version=version, options=storage_options)


def adopt(spark: SparkSession, path: str, *, storage_options: Options = None) -> bool:
    """Moves a table from task merge to Spark MERGE, for good; repeating it changes nothing.

    From here on the table has deletion vectors and the property `lakemark.engine`.

    Returns:
        Whether the table was moved by this call.

    Raises:
        TableError: `table-missing`.
        DependencyError: the lake does not answer or refuses.
    """
    table = open_table(path, storage_options)
    if table is None:
        raise TableError(f"{path} holds no Delta table", code="table-missing")
    if is_adopted(table):
        return False
    with _failures(path):
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES "
            f"('{ENGINE}' = '{SPARK_MERGE}', "
            "'delta.enableDeletionVectors' = 'true', "
            # Without it Spark could not add a column of this type later.
            "'delta.feature.timestampNtz' = 'supported')"
        )
    return True


def ensure(
    spark: SparkSession,
    path: str,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    table: str = "",
    storage_options: Options = None,
) -> Evolution:
    """Creates and adopts a table, or adds and widens columns of one; see `schema_evolution.ensure`.

    Raises:
        TableError: `schema-incompatible`, `path-clash`.
        DependencyError: the lake does not answer or refuses.
    """
    found = open_table(path, storage_options)
    applied = Evolution()
    if found is None or not is_adopted(found):
        applied = schema_evolution.ensure(
            path,
            schema,
            key=key,
            table=table,
            storage_options=storage_options,
            engine=DELETION_VECTORS,  # or of task merge
        )
        retried(path, lambda: adopt(spark, path, storage_options=storage_options))
        return applied

    def attempt() -> None:
        with told(path), _failures(path):
            plan = schema_evolution.plan(_existing(path, storage_options), path, schema, table)
            _add(spark, path, plan)
            _widen(spark, path, plan)
            plan.note(applied)

    retried(path, attempt)
    return applied


def _add(spark: SparkSession, path: str, plan: SchemaPlan) -> None:
    columns = [
        f"{quoted(f.name)} {from_arrow_type(f.type).simpleString()}" for f in plan.added
    ] + [f"{quoted(CDC)}.{quoted(f.name)} {from_arrow_type(f.type).simpleString()}"
         for f in plan.members]  # fmt: skip
    if columns:
        spark.sql(f"ALTER TABLE delta.{quoted(path)} ADD COLUMNS ({', '.join(columns)})")


def _widen(spark: SparkSession, path: str, plan: SchemaPlan) -> None:
    """The whole table, as one commit: its readers need no new feature."""
    if not plan.widened:
        return
    frame = _session(spark).read.format("delta").load(path)
    kinds = {name: from_arrow_type(kind) for name, _, kind in plan.widened}
    columns = [
        frame[quoted(n)].cast(kinds[n]).alias(n, metadata=frame.schema[n].metadata)
        if n in kinds
        else frame[quoted(n)]
        for n in frame.columns
    ]
    writer = frame.select(*columns).write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").save(path)


# -- commits ------------------------------------------------------------------------------------


def _once(
    spark: SparkSession,
    path: str,
    run: Callable[[SparkSession], MergeResult],
    *,
    app_id: str,
    version: int,
    options: Options,
    note: str = "",
) -> MergeResult:
    def attempt() -> MergeResult:
        with told(path):
            table = _existing(path, options)
            recorded = table.transaction_version(app_id)
            if recorded is not None and recorded >= version:
                return _sized(spark, path, table, MergeResult(skipped=True))
            with _failures(path), _transaction(spark, app_id, version, note) as session:
                result = run(session)
            return _sized(spark, path, _existing(path, options), result)

    return retried(path, attempt)


def _session(spark: SparkSession) -> SparkSession:
    """A session of its own: nothing set in it reaches anybody else's statements."""
    session = spark.newSession()
    for name in _INHERITED:
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    for name, setting in _SETTINGS.items():
        session.conf.set(name, setting)
    return session


@contextmanager
def _transaction(
    spark: SparkSession, app_id: str, version: int, note: str
) -> Iterator[SparkSession]:
    """A session of its own whose Delta statements are recorded as (app id, version)."""
    session = _session(spark)
    session.conf.set(_APP, app_id)
    session.conf.set(_VERSION, str(version))
    if note:
        session.conf.set(_NOTE, note)
    try:
        yield session
    finally:
        session.conf.unset(_APP)
        session.conf.unset(_VERSION)
        session.conf.unset(_NOTE)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turns Spark's errors into ours."""
    try:
        yield
    except PySparkException as error:
        text = f"{error.getCondition() or ''} {error}"
        if any(sign in text for sign in _CONFLICTS):
            raise Conflict(text) from error
        raise classified(error, path) from error
    except Exception as error:
        if type(error).__name__ != "Py4JJavaError":
            raise
        if any(sign in str(error) for sign in _CONFLICTS):
            raise Conflict(str(error)) from error
        raise classified(error, path) from error


def _statement(path: str, shape: Shape, parts: Sequence[StagedPart], deletes: str) -> str:
    ranges = " or ".join(f"({part.ranges})" for part in parts)
    condition = merge_sql.on(shape)
    if all(part.ranges for part in parts):
        condition += f" and ({ranges})"
    lines = [f"MERGE INTO delta.{quoted(path)} t USING {_VIEW} s ON {condition}"]
    for clause in merge_sql.clauses(shape, deletes=deletes, dialect=merge_sql.SPARK):
        if clause.kind == "insert":
            names, values = ", ".join(clause.updates), ", ".join(clause.updates.values())
            then = f"INSERT ({names}) VALUES ({values})"  # noqa: S608
        elif clause.kind == "update":
            then = "UPDATE SET " + ", ".join(f"t.{k} = {v}" for k, v in clause.updates.items())
        else:
            then = "DELETE"
        matched = "NOT MATCHED" if clause.kind == "insert" else "MATCHED"
        lines.append(f"WHEN {matched} AND {clause.predicate} THEN {then}")
    return "\n".join(lines)


def _existing(path: str, storage_options: Options) -> DeltaTable:
    table = open_table(path, storage_options)
    if table is None:
        raise TableError(
            f"{path} holds no Delta table",
            code="table-missing",
            hint="snapshot the table again to create it anew",
        )
    if not is_adopted(table):
        raise TableError(
            f"{path} belongs to task merge",
            code="engine-mismatch",
            hint="set this table's engine to spark-merge, so that lakemark moves it",
        )
    return table


def _sized(spark: SparkSession, path: str, table: DeltaTable, done: MergeResult) -> MergeResult:
    """Return the result with the table's size.

    Rows are Spark's count, which comes from the log too: delta-rs does not say how many rows
    deletion vectors hide.
    """
    size = size_of(table)
    with _failures(path):
        rows = spark.sql(f"SELECT count(*) FROM delta.{quoted(path)}").collect()[0][0]  # noqa: S608
    return replace(done, rows=int(rows), files=size.files, bytes=size.bytes)
