"""What a failure of the lake is taken for: trying again must help, or the table stops."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.sink.delta.failures import Conflict, classified, told
from lakemark.sink.names import table_path
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop, schema_of


@pytest.mark.parametrize(
    "text",
    [
        "Column 'connection' is declared non-nullable but contains nulls",
        "Invalid data found: 1 rows failed validation check. Preview: | user_credentials | 401 |",
        "Invariant violated: | quota exceeded since monday |",
    ],
)
def test_words_of_rows_and_columns_say_nothing_of_the_storage(text):
    error = classified(ValueError(text), "/lake/public/orders")
    assert (error.code, error.retried) == ("lake-refused", False)
    assert "monday" not in error.message
    assert "user_credentials" not in error.message


def test_nor_does_the_folder_s_name():
    error = classified(ValueError("whatever at /lake/connections"), "/lake/connections")
    assert not error.retried
    assert classified(ValueError("connection refused"), "/lake/connections").retried


def test_a_conflict_is_told_from_what_delta_rs_will_never_commit(tmp_path):
    path = str(tmp_path / "t")
    DeltaTable.create(path, pa.schema([("id", pa.int64())]))
    first, second = DeltaTable(path), DeltaTable(path)
    first.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(Conflict), told(path):
        second.alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})


@pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors"])
def test_a_table_that_takes_rows_only_stops_at_once(tmp_path, engine):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    shop = Shop(tmp_path, Broker(), schemas, settings={"engine": engine})
    shop.put("c", 10, 1, v="a")
    shop.run()
    path = table_path(shop.config.lake.path, ORDERS)
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    shop.put("u", 20, 1, v="b")
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.code, entry.retried) == ("unsupported-table-feature", False)
