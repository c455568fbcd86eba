"""Whoever reads a table while it is rebuilt has the old one or the new one, by every engine."""

import pyarrow as pa
import pytest

from lakemark.sink.delta import deletion_vectors, delta_rs, index_cache, rebuild
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.names import rebuild_path
from stack.processes import wait_for
from tests.kit.delta_table import merged
from tests.kit.watched_table import READERS, read_all_the_while, with_spark
from tests.kit.write_sets import at, delete, table_schema, upsert

pytestmark = pytest.mark.spark

ROWS, LOOK_S = 40, 60.0
KINDS = {"string": pa.string(), "int64": pa.int64()}


def write(engine, path, kind, *, version, app_id):
    """All rows and one more, then one less: a table with vectors gets one."""
    columns = {"id": pa.int64(), "v": KINDS[kind]}
    value = {"string": "v", "int64": version}[kind]
    own = TASK_MERGE if engine is delta_rs else DELETION_VECTORS
    delta_rs.ensure(path, table_schema(columns), key=["id"], table="public.t", engine=own)
    rows = [upsert({"id": n, "v": value}, at(version)) for n in range(ROWS + 1)]
    merged(engine, path, rows, version, app_id, columns)
    gone = [delete({"id": ROWS}, at(version + 1))]
    merged(engine, path, gone, version + 1, app_id, columns)


def test_tables_are_whole_to_all_readers_while_they_are_rebuilt(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(index_cache, "_folder", lambda: tmp_path / "cache")
    path = str(tmp_path / "t")

    write(deletion_vectors, path, "string", version=1, app_id="q/t/s")
    readers = {**READERS, "spark": with_spark(spark)}
    with read_all_the_while(path, at_least=ROWS, readers=readers) as seen:
        for number, engine in enumerate(
            [delta_rs, deletion_vectors, deletion_vectors, delta_rs, delta_rs, deletion_vectors]
        ):
            kind = list(KINDS)[(number + 1) % 2]
            name = f"rebuild-a-{number}"
            write(engine, rebuild_path(path, name), kind, version=1, app_id="q/t/catchup")
            rebuild.replace(path, name, table="public.t", storage_options={})
            write(engine, path, kind, version=10 * number + 20, app_id="q/t/s")
            rebuild.discard(path, name, storage_options={})
            wait_for(
                lambda kind=kind: any(found.startswith(kind) for found in seen),  # string_view
                LOOK_S,
                f"a look at the table with {kind}",
            )
            seen.clear()
