from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, DeltaProtocolError

from lakemark.errors import DependencyError, TableError
from lakemark.settings.table_id import text_of
from lakemark.sink import names
from lakemark.sink.delta import delta_rs, failures, maintenance, merge_sql, schema_evolution
from lakemark.sink.delta.delta_format import DeltaFormat
from lakemark.sink.delta.engines import TASK_MERGE
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.write_set import TargetColumn
from tests.kit.delta_table import merged, refusals
from tests.kit.sink_contract import COLUMNS, KEY_TYPES, KEY_VALUES, FormatContract, row
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set


class TestDelta(FormatContract):
    made_by, name = DeltaFormat(), TASK_MERGE

    def read(self, path):
        return DeltaTable(path).to_pyarrow_table()


def merge(path: str, *changes, version: int = 1):
    return merged(delta_rs, path, changes, version)


# -- tables that other readers can read -----------------------------------------------------------


def test_task_merge_tables_use_no_feature_that_readers_refuse(path, tmp_path):
    merge(path, upsert(row("a"), at(1)))
    merge(path, upsert(row("a"), at(2)), version=2)
    wide = {**COLUMNS, "when": pa.timestamp("us"), "b": pa.decimal128(20, 0)}
    delta_rs.ensure(path, table_schema(wide))
    merge(path, upsert(row("b"), at(3)), version=3)
    eager = Policy(spare_files=0)
    assert maintenance.maintain(path, key=["id"], engine=TASK_MERGE, policy=eager).compacted
    protocol = DeltaTable(path).protocol()
    assert set(protocol.reader_features or ()) <= {"timestampNtz"}
    assert set(protocol.writer_features or ()) <= {"timestampNtz", "appendOnly", "invariants"}
    plain = str(tmp_path / "plain")
    delta_rs.ensure(plain, table_schema(COLUMNS))
    assert DeltaTable(plain).protocol().min_reader_version == 1


def test_properties_are_honoured(path):
    merge(path, upsert(row("a", "text", 1), at(1)))
    adds = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert [c for c in adds.column_names if c.startswith("min.")] == ["min.id"]
    configuration = DeltaTable(path).metadata().configuration
    assert configuration["delta.targetFileSize"] == str(schema_evolution.TARGET_FILE_BYTES)
    assert "delta.setTransactionRetentionDuration" not in configuration  # records must not expire
    assert "lakemark" not in "".join(configuration)


def test_a_folder_belongs_to_one_source_table(path):
    with pytest.raises(TableError) as caught:
        delta_rs.ensure(path, table_schema(COLUMNS), table="public.T")
    assert caught.value.code == "path-clash"


def test_cdc_as_a_source_column_is_refused(tmp_path):
    schema = pa.schema([*table_schema(COLUMNS), ("_cdc", pa.int64())])
    with pytest.raises(TableError) as caught:
        delta_rs.ensure(str(tmp_path / "x"), schema)
    assert caught.value.code == "column-name-taken"


def test_spark_merge_tables_are_left_alone(path):
    DeltaTable(path).alter.set_table_properties(
        {"lakemark.engine": "spark-merge"}, raise_if_not_exists=False
    )
    assert {refused.code for refused in refusals(path)} == {"engine-mismatch"}
    assert delta_rs.committed(path, "q/t/s") is None
    assert delta_rs.read_rows(path, pa.table({"id": ["a"]})).num_rows == 0  # reading is fine


def test_a_table_with_deletion_vectors_is_refused_by_name(path, tmp_path):
    log = Path(path) / "_delta_log" / "00000000000000000001.json"
    log.write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
        '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]}}\n'
    )
    with pytest.raises(TableError) as caught:
        merge(path, upsert(row("a"), at(1)))
    assert caught.value.code == "unsupported-table-feature"
    assert "deletionVectors" in caught.value.message
    assert "spark-merge" in caught.value.hint


def test_missing_table_and_missing_column(path, tmp_path):
    with pytest.raises(TableError) as caught:
        merge(str(tmp_path / "nothing"), upsert(row("a"), at(1)))
    assert caught.value.code == "table-missing"
    rows = write_set([upsert({"id": "a", "new": 1}, at(1))], {**COLUMNS, "new": pa.int64()})
    with pytest.raises(TableError) as caught:
        delta_rs.merge(path, rows, key=["id"], deletes="hard", app_id="a", version=1)
    assert caught.value.code == "schema-behind"


# -- ensure ----------------------------------------------------------------------------------------


def test_widening_a_larger_table_is_one_commit_and_keeps_everything(path):
    changes = [upsert(row(str(i), "x" * 50, i), at(i + 1)) for i in range(30_000)]
    merge(path, *changes)
    before = DeltaTable(path)
    delta_rs.ensure(path, table_schema({**COLUMNS, "b": pa.decimal128(20, 0)}))
    after = DeltaTable(path)
    assert after.version() == before.version() + 1
    assert delta_rs.committed(path, "q/t/s") == 1
    old = before.to_pyarrow_table().sort_by("id")
    new = after.to_pyarrow_table().sort_by("id")
    assert new.schema.field("b").type == pa.decimal128(20, 0)
    assert new.column("_cdc").to_pylist() == old.column("_cdc").to_pylist()
    assert list(map(int, new.column("b").to_pylist())) == old.column("b").to_pylist()
    assert after.metadata().configuration == before.metadata().configuration
    assert after.metadata().name == "public.t"


def test_a_failing_rewrite_leaves_table_and_threads_alone(path, monkeypatch):
    import threading

    merge(path, upsert(row("a", b=1), at(1)))
    version = DeltaTable(path).version()
    monkeypatch.setattr(schema_evolution, "_checked", lambda batch, schema: 1 / 0)
    with pytest.raises(Exception, match="zero"):
        delta_rs.ensure(path, table_schema({**COLUMNS, "b": pa.decimal128(20, 0)}))
    assert DeltaTable(path).version() == version
    assert not [t for t in threading.enumerate() if t.name == "lakemark-rewrite"]


# -- names -----------------------------------------------------------------------------------------


def test_names_are_kept_where_they_can_be():
    kept = ["id", "Näme", "a.b", 'q"x', "%", "50%", "%4G", "$", "日本"]
    assert names.column_names(kept) == {n: n for n in kept}
    assert names.column_name("unit price") == "unit%20price"
    assert names.column_name("%20") == "%2520"


def test_names_that_clash_get_a_letter_escaped():
    found = names.column_names(["id", "Id", "ID", "_CDC"])
    assert found == {"id": "id", "Id": "%49d", "ID": "%49%44", "_CDC": "%5fCDC"}
    assert names.column_names(["Id", "id"], {"id": "id"}) == {"Id": "%49d", "id": "id"}


def test_table_paths_are_safe_and_no_two_are_equal():
    lake = "s3://bucket/lake/"
    assert names.table_path(lake, "public.orders") == "s3://bucket/lake/public/orders"
    found = set()
    tables = [
        ("public", "order items"),
        ("public", "order~20items"),
        ("a", "b.c"),
        ("a.b", "c"),
        ("a", "b", "c"),
        ("a", ".."),
        ("ä", "%20"),
        ("x", "/../etc"),
        ("p", "~20"),
        ("ü", "日本"),
        ("a", "\uff21"),
        ("public", "_delta_log"),
        ("_delta_log", "_delta_log"),
        ("public", "_delta_log2"),
    ]
    for parts in tables:
        path = names.table_path(lake, text_of(*parts))
        found.add(path)
        assert not set(" %[]\\*?#:'\"") & set(path.removeprefix("s3://"))
        assert not {"..", "_delta_log"} & set(path.split("/"))
    assert len(found) == len(tables)


def test_tables_that_are_there_keep_their_paths():
    """Only a name that could never be written has got another path."""
    for name in (
        "_prisma_migrations",
        "_SUCCESS",
        "_temporary",
        "_change_data",
        "_lakemark",
        "__x",
    ):
        assert names.table_path("lake", f"public.{name}") == f"lake/public/{name}"
        assert names.table_path("lake", f"{name}.t") == f"lake/{name}/t"


def test_odd_paths_work(tmp_path):
    hidden = (
        "_delta_log",
        "_SUCCESS",
        "_temporary",
        "_change_data",
        "_lakemark",
        "_spark_metadata",
    )
    odd = ("public.order items", "ä.x:y", "a.50%", "a.[b]", "a.c\\d", "s.日本")
    for table in (*odd, *(f"h.{name}" for name in hidden), *(f"{name}.t" for name in hidden)):
        path = names.table_path(str(tmp_path), table)
        delta_rs.ensure(path, table_schema(COLUMNS), key=["id"], table=table)
        merge(path, upsert(row("a"), at(1)))
        merge(path, upsert(row("b"), at(1)), version=2)
        assert DeltaTable(path).to_pyarrow_table().num_rows == 2


# -- reading rows ----------------------------------------------------------------------------------


def test_read_rows(path):
    merge(path, *(upsert(row(f"k{i:05}", "x", i), at(1)) for i in range(3000)))
    for count in (0, 1, 500, 2000):
        wanted = [f"k{i:05}" for i in range(0, count * 2, 2)]
        keys = pa.table({"id": pa.array([*wanted, "k99999", "quote'"], pa.string())})
        found = delta_rs.read_rows(path, keys, ["b", "_cdc", "id"])
        assert found.column_names == ["b", "_cdc", "id"]
        assert sorted(found.column("id").to_pylist()) == [w for w in wanted if w < "k03000"]
        assert found.schema.field("_cdc").type == table_schema(COLUMNS).field("_cdc").type
    assert delta_rs.read_rows(path, keys).column_names == [*COLUMNS, "_cdc"]


def test_read_rows_by_every_type_of_key(tmp_path):
    path = str(tmp_path / "t")
    columns = {**KEY_TYPES, "n": pa.int64(), "odd name": pa.list_(pa.int64())}
    delta_rs.ensure(path, table_schema(columns), key=list(KEY_TYPES))
    rows = [{n: v[i] for n, v in KEY_VALUES.items()} for i in (0, 1)]
    changes = [upsert({**k, "n": i, "odd name": [i]}, at(1)) for i, k in enumerate(rows)]
    delta_rs.merge(
        path,
        write_set(changes, columns),
        key=list(KEY_TYPES),
        deletes="hard",
        app_id="a",
        version=1,
    )
    keys = pa.table({n: pa.array([rows[1][n]], t) for n, t in KEY_TYPES.items() if n != "k_float"})
    assert delta_rs.read_rows(path, keys, ["n", "odd name"]).to_pylist() == [
        {"n": 1, "odd name": [1]}
    ]


def test_read_rows_without_a_table(tmp_path):
    keys = pa.table({"id": ["a"]})
    assert delta_rs.read_rows(str(tmp_path / "none"), keys).num_rows == 0


# -- pruning ---------------------------------------------------------------------------------------


def test_a_merge_of_near_keys_touches_only_their_files(tmp_path):
    path = str(tmp_path / "t")
    columns = {"id": pa.int64(), "v": pa.string()}
    delta_rs.ensure(path, table_schema(columns), key=["id"])

    def put(ids, version):
        changes = [upsert({"id": i, "v": str(version)}, at(version)) for i in ids]
        merged(delta_rs, path, changes, version, columns=columns)
        return set(DeltaTable(path).file_uris())

    put(range(100), 1)
    put(range(1000, 1100), 2)
    before = put(range(2000, 2100), 3)
    assert len(before) == 3
    after = put([5, 2005], 4)  # two places, far apart: the file between them stays
    assert len(before & after) == 1


@pytest.mark.parametrize("name", sorted(KEY_TYPES))
@pytest.mark.sampled(4)
def test_pruning_never_hides_a_row(tmp_path, name):
    """Statistics are cut (milliseconds, prefixes) or rounded: every key must still be found."""
    path = str(tmp_path / "t")
    columns = {"k": KEY_TYPES[name], "n": pa.int64()}
    delta_rs.ensure(path, table_schema(columns), key=["k"])
    for version in (1, 2, 3):
        changes = [upsert({"k": k, "n": version}, at(version)) for k in KEY_VALUES[name]]
        done = delta_rs.merge(
            path,
            write_set(changes, columns),
            key=["k"],
            deletes="hard",
            app_id="a",
            version=version,
        )
        assert done.rows == 2
    for k in KEY_VALUES[name]:
        changes = [delete({"k": k}, at(9))]
        version += 1
        done = delta_rs.merge(
            path,
            write_set(changes, columns),
            key=["k"],
            deletes="hard",
            app_id="a",
            version=version,
        )
        assert done.deleted == 1


def test_minus_zero_is_zero(tmp_path):
    path = str(tmp_path / "t")
    columns = {"k": pa.float64()}
    delta_rs.ensure(path, table_schema(columns), key=["k"])
    for version, change in enumerate([upsert({"k": -0.0}, at(1)), upsert({"k": 0.0}, at(2))]):
        done = delta_rs.merge(
            path,
            write_set([change], columns),
            key=["k"],
            deletes="hard",
            app_id="a",
            version=version,
        )
        assert done.rows == 1
    assert delta_rs.read_rows(path, pa.table({"k": [-0.0]})).num_rows == 1


def test_long_text_keys_with_a_common_prefix(tmp_path):
    path = str(tmp_path / "t")
    columns = {"k": pa.string()}
    delta_rs.ensure(path, table_schema(columns), key=["k"])
    keys = ["x" * 300 + suffix for suffix in ("a", "zz", "ü", "\U0010ffff")]
    for version in (1, 2):
        changes = [upsert({"k": k}, at(version)) for k in keys]
        done = delta_rs.merge(
            path,
            write_set(changes, columns),
            key=["k"],
            deletes="hard",
            app_id="a",
            version=version,
        )
        assert done.rows == len(keys)


def test_ranges_are_cut_at_the_widest_gaps():
    column = TargetColumn("id", "id", "c0")
    values = pa.chunked_array([pa.array([1, 2, 3, 1000, 1001, -(2**63), 2**63 - 1])])
    found = merge_sql.key_ranges([(column, values)], dialect=merge_sql.DATAFUSION)
    assert "t.`id` >= 1 and t.`id` <= 3" in found
    assert "t.`id` >= 1000 and t.`id` <= 1001" in found
    assert found.count(" or ") == 3
    many = pa.chunked_array([pa.array(range(0, 100_000, 10))])
    assert merge_sql.key_ranges([(column, many)], dialect=merge_sql.DATAFUSION).count(" or ") < 32


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (
            OSError("Generic S3 error: Error performing PUT … Connection refused"),
            DependencyError,
            "lake-unavailable",
        ),
        (
            DeltaError("Object store error: operation timed out"),
            DependencyError,
            "lake-unavailable",
        ),
        (OSError(30, "Read-only file system"), DependencyError, "lake-forbidden"),
        (OSError("Operation not permitted (os error 1)"), DependencyError, "lake-forbidden"),
        (PermissionError(13, "Permission denied"), DependencyError, "lake-forbidden"),
        (
            OSError("Generic S3 error: Server returned status 403 AccessDenied"),
            DependencyError,
            "lake-forbidden",
        ),
        (OSError(28, "No space left on device"), DependencyError, "lake-full"),
        (DeltaProtocolError("Unsupported reader feature"), TableError, "unsupported-table-feature"),
        (
            DeltaError("Object at location /x/part-0.snappy.parquet not found"),
            TableError,
            "table-file-missing",
        ),
        (
            DeltaError("Generic DeltaTable error: Schema error: no field named x"),
            TableError,
            "lake-refused",
        ),
    ],
)
def test_failures_are_told_apart(error, kind, code):
    with pytest.raises(kind) as caught, failures.told("/lake/t"):
        raise error
    assert caught.value.code == code
    assert caught.value.hint
    assert caught.value.retried == (kind is DependencyError)


def test_our_own_mistakes_are_not_dressed_up():
    with pytest.raises(KeyError), failures.told("/lake/t"):
        raise KeyError("x")


def test_a_panic_of_the_rust_side_does_not_end_the_worker(path):
    with pytest.raises(TableError) as caught, failures.told(path):
        write_deltalake(str(Path(path).parent / "p[x]"), pa.table({"a": [1]}))
        write_deltalake(str(Path(path).parent / "p[x]"), pa.table({"a": [1]}), mode="append")
    assert caught.value.code == "lake-refused"


def test_a_lost_data_file_is_named(path):
    merge(path, upsert(row("a"), at(1)))
    for file in Path(path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableError) as caught:
        merge(path, upsert(row("a"), at(2)), version=2)
    assert caught.value.code == "table-file-missing"
