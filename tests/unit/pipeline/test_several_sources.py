"""Two connectors in one pipeline, PostgreSQL's and MariaDB's, whose tables have the same names."""

import json
from dataclasses import replace

import pytest

from lakemark.connectors.connector import parse
from lakemark.connectors.qualified_database import under
from lakemark.errors import DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.reconcile import window
from lakemark.reconcile.state import parted
from lakemark.sources.source_set import PipelineSource, Sources
from lakemark.state import selection, tables
from lakemark.state.control_records import carry_out
from tests.kit.connector_settings import POSTGRES
from tests.kit.memory_pipeline import Broker, MemoryCatalog
from tests.kit.shop import ORDERS, SIGNALS, Shop, compact, event, schema_of

SHOP, CRM = f"shop.{ORDERS}", f'"shop.eu".{ORDERS}'
CRM_TOPIC = f"shop.eu.{ORDERS}"
CLASSES = {"shop": "postgresql.PostgresConnector", "shop.eu": "mariadb.MariaDbConnector"}


class Mall(Shop):
    """Orders of two databases; the topic prefix of one begins with that of the other."""

    def _start(self):
        pipeline = super()._start()
        known = under("shop", self.schemas) | under("shop.eu", self.schemas)
        self.catalogs = {name: MemoryCatalog(dict(known)) for name in CLASSES}
        made = []
        for prefix, kind in CLASSES.items():
            settings = {
                **POSTGRES,
                "connector.class": f"io.debezium.connector.{kind}",
                "topic.prefix": prefix,
                "skipped.operations": "none",
            }
            connector = parse(settings, config=self.config).among_several()
            catalog = self.catalogs[prefix]
            made.append(PipelineSource(self.config, connector, catalog, HandlingModes()))
        pipeline.sources = self.started = Sources(tuple(made))
        pipeline.schemas.clear()
        pipeline.schemas.update(known)
        pipeline.__post_init__()
        return pipeline

    def crm(self, op, at, key, *, file=7, ts=None, gtid=None, **row):
        """An event of MariaDB at a place of a file of its log."""
        value = json.loads(event(op, at, {"id": key, **row}, name="shop.eu", ts=ts))
        source = value["source"]
        for name in ("sequence", "lsn", "schema", "txId", "xmin"):
            source.pop(name, None)
        place = {"file": f"binlog.{file:06}", "pos": at}
        source |= {"connector": "mariadb", "db": "public", "gtid": gtid, **place}
        value["transaction"] = {"id": f"0-1-{at}", "total_order": 1}
        value["before"] = {"id": key} if op == "d" else None
        self.broker.put(CRM_TOPIC, 0, compact({"id": key}), compact(value))


@pytest.fixture
def mall(tmp_path):
    return Mall(
        tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")}, signal_table=SIGNALS
    )


def both(mall):
    return mall.values(SHOP), mall.values(CRM)


def test_tables_of_one_name_are_two_and_each_log_has_its_own_order(mall):
    mall.put("c", 500, 1, v="shop")
    mall.crm("c", 4, 1, v="crm")
    mall.run()
    mall.crm("u", 5, 1, v="crm 2")
    mall.put("u", 400, 1, v="older")  # the connector sends again
    mall.run()
    assert both(mall) == ({1: "shop"}, {1: "crm 2"})
    replays = {name: entry.size.replays for name, entry in mall.state.tables.items()}
    assert replays == {SHOP: 1, CRM: 0}


def test_a_record_of_the_other_connector_is_none_of_a_topics_own(mall):
    mall.put("c", 1, 1, v="shop")
    mall.crm("c", 4, 1, v="crm")
    mall.broker.put(f"shop.{ORDERS}", 0, compact({"id": 2}), event("c", 2, {"id": 2, "v": "x"}, name="shop.eu"))  # fmt: skip
    mall.run()
    assert both(mall) == ({1: "shop"}, {1: "crm"})
    assert mall.state.tables[SHOP].size.dead_letters == 1


def test_an_epoch_of_one_begins_for_its_own_tables_alone(mall):
    mall.put("c", 500, 1, v="shop")
    mall.crm("c", 4, 1, file=9, v="crm")
    mall.run()
    mall.crm("c", 3, 2, file=2, ts=9_000, v="restored")
    mall.run()
    assert mall.state.tables[CRM].code == "position-regressed"
    assert mall.state.tables[CRM].hint.endswith("recover --new-epoch --connector shop.eu")
    mall.records.append({"type": "new-epoch", "id": "n", "connector": "shop.eu"})
    mall.put("u", 400, 1, v="older")
    mall.run()
    mall.run()
    assert both(mall) == ({1: "shop"}, {1: "crm", 2: "restored"})
    assert mall.state.tables[SHOP].size.replays == 1
    assert not mall.state.tables[SHOP].repair.resnapshot
    assert mall.state.tables[CRM].repair.resnapshot
    (epoch,) = mall.state.log_of("shop.eu").epochs
    assert epoch.keys() == {CRM_TOPIC}
    assert mall.state.log_of("shop").epochs == mall.state.epochs == []


@pytest.mark.parametrize(
    ("statement", "snapshot", "doubt"),
    [
        ("ALTER TABLE orders TRUNCATE PARTITION p", None, True),
        ("ALTER TABLE orders TRUNCATE PARTITION p", "true", False),
        ("ALTER TABLE other TRUNCATE PARTITION p", None, False),
        ("ALTER TABLE orders ADD w int", None, False),
    ],
)
def test_a_statement_that_moves_rows_is_about_its_own_connectors_tables(
    mall, statement, snapshot, doubt
):
    mall.put("c", 1, 1, v="a")
    mall.crm("c", 4, 1, v="a")
    mall.run()
    source = {"connector": "mariadb", "name": "shop.eu", "snapshot": snapshot}
    place = {"file": "binlog.000007", "pos": 5}
    record = {"source": source | place, "databaseName": "public", "ddl": statement, "ts_ms": 1}
    mall.broker.put("shop.eu", 0, compact({"databaseName": "public"}), compact(record))
    mall.run()
    assert bool(mall.state.tables[CRM].repair.resnapshot) is doubt
    assert not mall.state.tables[SHOP].repair.resnapshot


def test_another_servers_log_is_followed_for_its_own_tables_alone(mall):
    mall.put("c", 500, 1, v="shop")
    mall.crm("c", 4, 1, file=9, gtid="0-1-1", v="crm")
    mall.run()
    mall.crm("c", 3, 2, file=2, ts=9_000, gtid="0-2-2", v="promoted")
    mall.run()
    assert mall.state.tables[CRM].code == "log-changed"
    mall.put("u", 400, 1, v="older")
    mall.run()
    mall.run()
    assert both(mall) == ({1: "shop"}, {1: "crm", 2: "promoted"})
    assert mall.state.tables[SHOP].size.replays == 1
    assert mall.state.log_of("shop").epochs == mall.state.epochs == []
    (epoch,) = mall.state.log_of("shop.eu").epochs
    assert epoch.keys() == {CRM_TOPIC}


def test_a_catalog_that_is_away_holds_up_its_own_tables_alone(mall):
    mall.put("c", 1, 1, v="a")
    mall.crm("c", 1, 1, v="a")
    mall.run()
    for name, catalog in mall.catalogs.items():
        wider = schema_of(ORDERS, id="int8", v="text", w="text")
        catalog.schemas |= under(name, {ORDERS: wider})
    mall.catalogs["shop.eu"].away = DependencyError("no", code="database-unavailable")
    mall.put("c", 2, 2, v="b", w="w")
    mall.crm("c", 2, 2, v="b", w="w")
    mall.run()
    mall.run()
    assert mall.values(SHOP, "w") == {1: None, 2: "w"}
    waits = mall.state.tables[CRM]
    assert (waits.state, waits.code, waits.retried) == (
        tables.ERRORED, "database-unavailable", True,
    )  # fmt: skip


def test_one_that_is_away_is_left_out_and_goes_on_where_it_stopped(mall):
    mall.put("c", 1, 1, v="a")
    mall.crm("c", 1, 1, v="a")
    mall.run()
    whole, now = mall.pipeline.sources, mall.state
    alone = Sources(whole.of[:1])
    assert selection.select(now, alone.wanted).left == (CRM,)
    assert now.left[CRM].captured, "nobody says that it is not"
    mall.checkpoint.save(now)
    mall.pipeline.sources = alone
    mall.put("u", 2, 1, v="b")
    mall.run({f"shop.{ORDERS}": {0: 2}})
    assert both(mall) == ({1: "b"}, {1: "a"})

    mall.crm("u", 2, 1, v="b")
    now = mall.state
    assert selection.select(now, whole.wanted).back == (CRM,)
    mall.checkpoint.save(now)
    mall.pipeline.sources = whole
    mall.read[CRM_TOPIC] = {0: 1}
    mall.run()
    assert both(mall) == ({1: "b"}, {1: "b"})
    assert not mall.state.tables[CRM].repair.resnapshot


def start(mall, *here):
    """Start the query again with these connectors alone."""
    here = here or (*mall.started.of,)
    topics = {one.connector.topic_start: one.connector.own_topics for one in mall.started.of}
    away = {start: own for start, own in topics.items() if start not in map(starts, here)}
    now = mall.state
    mall.pipeline.sources = Sources(
        tuple(replace(one, connector=one.connector.leaving(away, (), ())) for one in here)
    )
    selection.select(now, mall.pipeline.sources.wanted)
    mall.checkpoint.save(now)


def starts(source):
    return source.connector.topic_start


def test_a_table_is_paused_and_resumed_while_its_connector_is_away(mall):
    mall.put("c", 1, 1, v="a")
    mall.crm("c", 1, 1, v="a")
    mall.run()
    start(mall, mall.started.of[0])
    mall.crm("u", 2, 1, v="b")
    mall.records.append({"type": "table-pause", "table": CRM})
    mall.put("u", 2, 1, v="b")
    mall.run({f"shop.{ORDERS}": {0: 2}})
    assert mall.state.left[CRM].entry.progress.from_offsets == {CRM_TOPIC: {0: 1}}
    start(mall)
    mall.read[CRM_TOPIC] = {0: 1}
    mall.run()
    assert mall.state.tables[CRM].code == "paused"
    assert both(mall) == ({1: "b"}, {1: "a"})

    start(mall, mall.started.of[0])
    mall.records.append({"type": "table-resume", "table": CRM})
    mall.put("u", 3, 1, v="c")
    mall.run({f"shop.{ORDERS}": {0: 3}})
    start(mall)
    mall.read[CRM_TOPIC] = {0: 2}
    mall.run()
    assert both(mall) == ({1: "c"}, {1: "b"})
    assert not mall.state.tables[CRM].repair.resnapshot


def test_a_table_that_is_skipped_while_its_connector_is_away_leaves_its_changes_out(mall):
    mall.put("c", 1, 1, v="a")
    mall.crm("c", 1, 1, v="a")
    mall.run()
    start(mall, mall.started.of[0])
    mall.crm("u", 2, 1, v="b")
    skip = {"type": "table-skip", "table": CRM, "offsets": {CRM_TOPIC: {"0": 2}}}
    mall.records += [{"type": "table-pause", "table": CRM}, skip]
    mall.put("u", 2, 1, v="b")
    mall.run({f"shop.{ORDERS}": {0: 2}})
    start(mall)
    mall.read[CRM_TOPIC] = {0: 1}
    mall.run()
    assert both(mall) == ({1: "b"}, {1: "a"})
    mall.crm("u", 3, 1, v="c")
    mall.run()
    assert both(mall) == ({1: "b"}, {1: "c"})
    assert mall.state.tables[CRM].state == tables.STREAMING
    assert mall.state.tables[CRM].repair.resnapshot


def test_runs_of_one_that_is_not_there_are_armed_again_by_itself_alone(mall):
    """Its coordinator is away: nobody else would ever disarm them, and batches stay slow."""
    starts = {
        prefix: {"type": "run-start", "run": f"r@{prefix}", "tables": [t], "connector": prefix}
        for prefix, t in (("shop", SHOP), ("shop.eu", CRM))
    }
    mall.records += starts.values()
    mall.put("c", 1, 1, v="a")
    mall.run()
    assert mall.state.runs == {"r@shop", "r@shop.eu"}
    whole = mall.pipeline.sources
    mall.pipeline.sources = Sources(whole.of[:1])
    mall.records.append(starts["shop.eu"])  # written before it went away
    mall.put("u", 2, 1, v="b")
    mall.run()
    assert mall.state.runs == {"r@shop"}
    mall.pipeline.sources = whole
    mall.put("u", 3, 1, v="c")
    mall.run()
    assert mall.state.runs == {"r@shop"}, "its coordinator would read before shards know of it"
    mall.records.append(starts["shop.eu"])
    mall.put("u", 4, 1, v="d")
    mall.run()
    assert mall.state.runs == {"r@shop", "r@shop.eu"}


def test_shards_remember_each_log_by_itself(mall):
    for prefix, table in (("shop", SHOP), ("shop.eu", CRM)):
        start = {"type": "run-start", "run": f"r@{prefix}", "tables": [table]}
        mall.records.append({**start, "connector": prefix})
    mall.put("c", 500, 1, v="a")
    mall.crm("c", 4, 1, v="a")
    mall.run()
    mall.put("u", 501, 1, v="b")
    mall.crm("u", 5, 1, v="b")
    mall.run()
    found = dict.fromkeys(CLASSES, 0)
    for blob in mall.shards.states[mall.batch].values():
        for connector, own in parted(blob).items():
            found[connector] += window.touched(own).num_rows
    assert found == {"shop": 1, "shop.eu": 1}


def test_nobody_is_there():
    none = Sources(())
    assert none.several
    assert not none.wanted.topic("shop.public.orders")
    assert none.wanted.captured(SHOP)


def test_topics_renamed_by_a_transform_are_those_of_who_reads_them(mall):
    first, second = mall.pipeline.sources.of
    routed = replace(second.connector, topic_pattern="routed")
    sources = Sources((first, replace(second, connector=routed)))
    assert sources.owners("routed") == "shop.eu"
    assert sources.owners(f"shop.{ORDERS}") == "shop"


def test_a_command_without_a_connector_begins_no_epoch_of_several(mall):
    mall.put("c", 1, 1, v="a")
    mall.run()
    now = mall.state
    record = {"type": "new-epoch", "id": "n"}
    carry_out(
        [record], now, before=now, start=now.offsets, refresh=mall.pipeline.refresh,
        owners=mall.pipeline.sources.owners,
    )  # fmt: skip
    assert not now.tables[SHOP].repair.resnapshot
