"""A table that is left out while its columns change: it is marked before it is taken back."""

from lakemark.model.wanted import Wanted
from lakemark.state import connector_drift, control, selection
from lakemark.state.control_records import carry_out
from lakemark.state.schema_refresh import Refresh
from tests.kit.memory_pipeline import MemoryCatalog
from tests.kit.shop import ITEMS, ORDERS, schema_of
from tests.unit.state.test_connector_drift import Kept, agreed, connector


def wanted(*names: str) -> Wanted:
    return Wanted(lambda _: True, set(names), lambda _: True)


def test_a_column_is_written_otherwise_when_the_table_is_named_again(shop, monkeypatch):
    said = []
    monkeypatch.setattr(control, "resnapshot", lambda config, found, why: said.extend(found))
    kept, ours = Kept(), connector(shop)
    agreed(shop.config, kept, ours, {ITEMS: schema_of(ITEMS, id="int8", v="timestamp")})
    selection.select(kept.state, wanted(ORDERS))
    assert ITEMS in kept.state.left
    agreed(shop.config, kept, ours, {ITEMS: schema_of(ITEMS, id="int8", v="date")})
    assert said == [ITEMS]

    mark = {"type": "table-resnapshot", "table": ITEMS, "reason": "types"}
    carry_out([mark], kept.state, before=kept.state, start={}, refresh=Refresh({"": MemoryCatalog({})}, {}))  # fmt: skip
    selection.select(kept.state, wanted(ORDERS, ITEMS))
    entry = kept.state.tables[ITEMS]
    assert entry.repair.resnapshot == "types"


def test_the_connector_writes_otherwise_while_the_table_is_left_out(shop, monkeypatch):
    class Catalog:
        def __init__(self, modes):
            self.modes = modes

        def read(self, _names):
            return {
                ITEMS: schema_of(ITEMS, modes=self.modes, id="int8", w="timestamp"),
                ORDERS: schema_of(ORDERS, modes=self.modes, id="int8", v="text"),
            }

    said = []
    monkeypatch.setattr(connector_drift, "catalog_of", lambda _, modes, __: Catalog(modes))
    monkeypatch.setattr(control, "resnapshot", lambda config, found, why: said.extend(found))
    kept = Kept()
    agreed(shop.config, kept, connector(shop), {})
    selection.select(kept.state, wanted(ORDERS))
    agreed(shop.config, kept, connector(shop, time_precision_mode="connect"), {})
    assert said == [ITEMS]
