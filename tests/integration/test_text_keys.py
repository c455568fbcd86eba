"""Keys as Connect's StringConverter writes them, beside values in JSON and in Avro."""

import pytest

from lakemark.converters.json.struct_keys import CLASS
from stack.local import Database
from tests.integration.test_end_to_end import fill_shop, load
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.nightly import nightly
from tests.kit.running import Running
from tests.kit.servers import on
from tests.kit.snapshots import SNAPSHOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@nightly
@pytest.mark.parametrize("form", ["plain", "confluent"])
@on("postgres", "mariadb-11.4")
def test_tables_equal_and_no_record_is_refused(any_database: Database, form: str, tmp_path):
    database = any_database
    fill_shop(database)
    values = {} if form == "plain" else form_settings(form, database.stack)
    theirs = {k: v for k, v in values.items() if not k.startswith("key.converter")}
    keys = {"key.converter": CLASS, "key.converter.schemas.enable": "false"}
    database.start_connector({"snapshot.mode": "no_data", **theirs, **keys})
    told = {
        **SNAPSHOT,
        "snapshot": {**SNAPSHOT["snapshot"], "incomplete": "auto"},
        "source": source_section(database, tmp_path),
    }
    with Running(database, tmp_path, told) as running:
        running.lakemark.start()
        load(database, 4)
        # In Avro their columns have other names, in a key's text as well: they are not read in chunks.
        names = ("Bestell Übersicht", "all_types") if form != "plain" else ()
        odd = {database.identifier(name) for name in names}
        found = running.wait_equal(*(name for name in running.tables() if name not in odd))
        assert found[database.identifier("orders")].source_rows > 100
        kept = running.lakemark.progress()
        assert not any(record.get("dead_letters") for record in kept.values())
