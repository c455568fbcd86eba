"""A connector with Debezium's transform that takes the envelope away: tables equal all the same.

Rows of the table of signals come without their envelopes, too: windows of snapshots depend on them.
"""

import pytest

from stack.local import Database
from tests.integration.test_end_to_end import fill_shop, load
from tests.kit.nightly import nightly
from tests.kit.running import Running
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRANSFORM = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.replace.null.with.default": "false",
}
PLACES = {
    "postgres": "source.schema,source.sequence,source.lsn",
    "mariadb-11.4": "source.db,source.file,source.pos,source.gtid,transaction.total_order",
}
WRAPPED = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}


def settings(service: str, where: str) -> dict[str, str]:
    told = f"op,source.table,source.snapshot,source.ts_us,{PLACES[service]}"
    deletes = "rewrite" if where == "fields" else "delete-to-tombstone"
    return {
        **TRANSFORM,
        f"transforms.unwrap.add.{where}": told,
        "transforms.unwrap.delete.tombstone.handling.mode": deletes,
    }


@pytest.mark.parametrize(
    ("any_database", "where", "wrapped"),
    [
        ("postgres", "fields", False),
        pytest.param("postgres", "headers", False, marks=nightly),
        pytest.param("postgres", "fields", True, marks=nightly),
        pytest.param("mariadb-11.4", "fields", False, marks=nightly),
        pytest.param("mariadb-11.4", "headers", True, marks=nightly),
    ],
    indirect=["any_database"],
)
def test_tables_equal_and_snapshots_go_on(
    any_database: Database, where: str, wrapped: bool, tmp_path, request
):
    service = request.node.callspec.params["any_database"]
    database = any_database
    fill_shop(database)
    database.start_connector(
        {"snapshot.mode": "no_data", **settings(service, where), **(WRAPPED if wrapped else {})}
    )
    told = {**SNAPSHOT, "snapshot": {**SNAPSHOT["snapshot"], "incomplete": "auto"}}
    with Running(database, tmp_path, told) as running:
        running.lakemark.start()
        load(database, 4)
        # The transform drops truncates, of which the workload has some of this table.
        tables = [name for name in running.tables() if name != database.identifier("carts")]
        running.wait_equal(*tables)
        for table in tables:
            running.wait_progress(table, "whole", lambda r: bool(r.get("complete")))
        running.lakemark.kill()
        load(database, 2, seed=2)
        running.lakemark.start()
        load(database, 2, seed=3)
        found = running.wait_equal(*tables)
        assert found[database.identifier("orders")].source_rows > 100
        kept = running.lakemark.progress()
        assert not any(record.get("dead_letters") for record in kept.values())
