"""Batches that end between two transactions: what a cut says of the tables is true.

Random transfers between two tables, whose records come to Kafka as they may: each partition in its
order, all of them and the transactions' ends in any, some of them again after a restart. The
runner's batches end anywhere; processes die before a batch's state is kept. Whenever a batch notes
a cut, the tables are read: they hold the transactions up to it, and nothing else.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.model.cuts import SourceCut
from lakemark.sink import names
from lakemark.sources.cutting import Cutting
from tests.kit.log_model import STEP
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import ITEMS, ORDERS, Shop, compact, event, schema_of

TRANSACTIONS = "shop.transaction"
KEYS, START = 5, 100
Record = tuple[str, int, bytes | None, bytes | None]
Rows = dict[str, dict[int, int]]


@dataclass
class Source:
    """A database, its log, and its connector, which has sent all of it by and by.

    Attributes:
        partitions: of each table's topic.
        place: of the newest entry in the log.
        commit: place of the newest commit.
        rows: of the tables now.
        after: the same after each transaction, by its id.
        sent: records by transaction, as the connector sends them.
        queues: what is on its way to each partition.
    """

    dice: random.Random
    partitions: int = 1
    place: int = 10
    commit: int = 9
    rows: Rows = field(default_factory=lambda: {t: {} for t in (ORDERS, ITEMS)})
    after: dict[str, Rows] = field(default_factory=dict)
    sent: list[list[Record]] = field(default_factory=list)
    queues: dict[tuple[str, int], list[Record]] = field(default_factory=dict)

    def begin(self) -> list[Record]:
        """The connector's own snapshot: so the tables are whole."""
        found = []
        for table in (ORDERS, ITEMS):
            for key in range(KEYS):
                self.rows[table][key] = START
                row = {"id": key, "v": START}
                last = "last" if key == KEYS - 1 else "true"
                value = event("r", 5, row, table=table, snapshot=last)
                found.append((f"shop.{table}", self._part(key), compact({"id": key}), value))
        return found

    def _part(self, key: int) -> int:
        return key % self.partitions

    def transact(self) -> None:
        """Somebody moves something from one table to the other; sometimes a key moves, too."""
        number, events = len(self.after) + 1, []
        one, other = self.dice.sample((ORDERS, ITEMS), 2)
        amount = self.dice.randrange(1, 9)
        for table, more in ((one, -amount), (other, amount)):
            for share in [more, *[0] * self.dice.choice((0, 0, 2))]:
                key = self.dice.choice(sorted(self.rows[table]))
                self.place += 1
                self.rows[table][key] += share
                row = {"id": key, "v": self.rows[table][key]}
                value = event("u", self.place, row, table=table, tx=self.commit)
                events.append((f"shop.{table}", self._part(key), compact({"id": key}), value))
        self.place += 1
        self.commit = self.place
        name = f"{number}:{STEP * self.commit}"
        counts = Counter(topic.removeprefix("shop.") for topic, *_ in events)
        begin = {"status": "BEGIN", "id": name, "event_count": None, "data_collections": None}
        end = {
            "status": "END", "id": name, "event_count": len(events), "ts_ms": number,
            "data_collections": [
                {"data_collection": t, "event_count": n} for t, n in counts.items()
            ],
        }  # fmt: skip
        told = [(TRANSACTIONS, 0, b"{}", compact(one)) for one in (begin, end)]
        self.after[name] = json.loads(json.dumps(self.rows), object_hook=_numbered)
        self.sent.append([told[0], *events, told[1]])
        self.send(self.sent[-1])

    def send(self, records: list[Record]) -> None:
        for record in records:
            self.queues.setdefault(record[:2], []).append(record)

    def restart(self) -> None:
        """The connector goes back a little, and sends that again."""
        for records in self.sent[-self.dice.randrange(1, 5) :]:
            self.send(records)


def _numbered(found: dict[str, object]) -> dict[object, object]:
    return {int(k) if k.isdecimal() else k: v for k, v in found.items()}


class Bank(Shop):
    """Both tables, and batches that end at cuts."""

    def __init__(self, root, broker, **rest):
        schemas = {t: schema_of(t, id="int4", v="int4") for t in (ORDERS, ITEMS)}
        sections = {"stream": {"cuts": "transactions", **rest}}
        super().__init__(root, broker, schemas, sections=sections)
        self.runner.own_ranges = True

    def _start(self):
        pipeline = super()._start()
        pipeline.cutting = Cutting(
            pipeline.sources.transaction_topics(),
            lambda ranges: [batch for one in ranges for batch in self._range(one)],
            lambda topics: {t: e for t, e in self.broker.ends().items() if t in topics},
            most=self.config.stream.max_events_per_batch,
        )
        return pipeline

    @property
    def cut(self) -> SourceCut | None:
        return self.state.cutting.last

    def table_rows(self, table):
        path = names.table_path(self.config.lake.path, table)
        if not DeltaTable.is_deltatable(path):
            return {}
        found = pa.table(DeltaTable(path).scan()).to_pylist()
        return {row["id"]: row["v"] for row in found}


class Play:
    """A random history, step by step."""

    def __init__(self, root, broker, seed, *, partitions=1, dies=True):
        self.dice = random.Random(seed)
        self.source = Source(self.dice, partitions)
        self.bank = Bank(root, broker)
        self.dies, self.seen = dies, 0
        for record in self.source.begin():
            self.put(record)
        self.bank.run()

    def put(self, record):
        topic, partition, key, value = record
        self.bank.broker.put(topic, partition, key, value)

    def arrive(self, share=1.0):
        """Some of what is on its way comes to Kafka."""
        for queue in self.source.queues.values():
            count = len(queue) if share == 1 else self.dice.randrange(len(queue) + 1)
            for record in queue[:count]:
                self.put(record)
            del queue[:count]

    def batch(self, *, whole=False):
        ends, read = self.bank.broker.ends(), self.bank.read
        if not whole:
            ends = {
                topic: {
                    p: self.dice.choice((end, end, self.dice.randint(read[topic].get(p, 0), end)))
                    if topic in read
                    else end
                    for p, end in parts.items()
                }
                for topic, parts in ends.items()
            }
        known = self.bank.cut
        self.bank.checkpoint.dies_before_saving = self.dies and self.dice.random() < 0.1
        try:
            self.bank.run(ends)
        except DiedError:
            self.arrive(0.5)
            self.bank.restart()
            self.bank.again()
            self.bank.read = {t: dict(p) for t, p in ends.items()}
        if self.bank.cut is not None and self.bank.cut != known:
            self.check(self.bank.cut)

    def check(self, cut):
        self.seen += 1
        expected = self.source.after[cut.transaction]
        for table in {ORDERS, ITEMS} - set(cut.without):
            assert self.bank.table_rows(table) == expected[table], (cut, table)

    def step(self):
        what = self.dice.random()
        if what < 0.5:
            self.source.transact()
        elif what < 0.55 and self.dies and not any(self.source.queues.values()):
            self.source.restart()
        elif what < 0.75:
            self.arrive(self.dice.choice((0.5, 1.0)))
        else:
            self.batch()

    def settle(self):
        """Nothing more happens: what is held back is applied, and the last cut has everything."""
        for _ in range(3):
            self.arrive()
            self.batch(whole=True)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_tables_hold_what_a_cut_says(tmp_path, seed, partitions):
    play = Play(tmp_path, Broker(), seed, partitions=partitions)
    for _ in range(80):
        play.step()
    play.settle()
    assert play.seen > 3
    newest = list(play.source.after)[-1]
    for table in (ORDERS, ITEMS):
        assert play.bank.table_rows(table) == play.source.after[newest][table]
    assert play.bank.state.held == 0


@pytest.mark.parametrize("seed", range(2))
def test_on_a_good_day_the_last_cut_has_everything(tmp_path, seed):
    play = Play(tmp_path, Broker(), seed, dies=False)
    for _ in range(60):
        play.step()
    play.settle()
    cut = play.bank.cut
    assert (cut.transaction, cut.without) == (list(play.source.after)[-1], ())
