"""The connector of a simulated history with the rules of MySQL and MariaDB: their source blocks."""

import json
from dataclasses import dataclass
from typing import Any

from lakemark.connectors.mysql.positions import POSITIONS, pack
from lakemark.model.positions import epoch_number
from tests.kit.log_model import Entry
from tests.kit.log_records import value_json
from tests.kit.simulation.binlog_source import FIRST_FILE, BinlogSource, Place
from tests.kit.simulation.connector import Change, Connector, Event

KIND = "mariadb"


@dataclass
class BinlogConnector(Connector):
    """Emits a log of files.

    Attributes:
        metadata: with the order of a transaction's events.
        named: with the names of transactions, of the server where they were made.
        taken_over: transactions that the first server has made; -1 while it is the only one.
    """

    source: BinlogSource
    metadata: bool = True
    named: bool = False
    taken_over: int = -1

    def _append(
        self, index: int, number: int, change: Change, lsn: Any, ts: int, *, snapshot: str = "false"
    ) -> None:
        place: Place = lsn
        told = self.metadata and change["op"] != "t" and snapshot == "false"
        order = place.order if told else None
        at = self._position(place, order, own=snapshot in {"true", "last"})
        event = Event(index, number, change, place, at, ts, snapshot)
        self.stream.append(event)

    def _position(self, place: Place, order: int | None, *, own: bool) -> bytes:
        """The position of an event in the log that it is in: what lakemark is to find out."""
        fields = {"file": [name_of(place)], "pos": [place.pos], "total_order": [order]}
        (found,) = POSITIONS.from_source(fields, [own], epoch_number(KIND, place.log))
        assert found is not None
        return found

    def end_of(self, event: Event) -> bytes:
        """The position behind the transaction of an event."""
        place: Any = event.sequence
        return pack(epoch_number(KIND, place.log), place.file, place.end)

    def _value(self, entry: Entry, event: Event) -> bytes:
        plain = Entry(
            entry.op, (None, 0), entry.ts, entry.key, entry.before, entry.after, entry.snapshot,
            entry.new_key, entry.old_key,
        )  # fmt: skip
        value = json.loads(value_json(plain, wrapped=False))
        value["source"] = self._source_block(event, "things") | {"gtid": self._gtid(event)}
        value["transaction"] = self._transaction(event)
        return json.dumps(value).encode()

    def _gtid(self, event: Event) -> str | None:
        if not self.named or event.snapshot != "false":
            return None
        return f"{'second' if event.commit >= self.taken_over >= 0 else 'first'}:{event.commit + 1}"

    def _transaction(self, event: Event) -> dict[str, Any] | None:
        place: Any = event.sequence
        if not self.metadata or event.snapshot != "false" or event.change["op"] == "t":
            return None
        return {"id": f"0-1-{event.commit}", "total_order": self.told_order(place)}

    def told_order(self, place: Place) -> int:
        """`transaction.total_order`, as the connector writes it."""
        return place.order

    def _source_of_signal(self, event: Event) -> dict[str, Any]:
        return self._source_block(event, "debezium_signal")

    def _source_block(self, event: Event, table: str) -> dict[str, Any]:
        place: Any = event.sequence
        return {
            "connector": KIND, "name": "shop", "ts_ms": event.ts, "ts_us": event.ts * 1000,
            "snapshot": event.snapshot, "db": "public", "table": table, "sequence": None,
            "server_id": place.log + 1, "gtid": None, "file": name_of(place), "pos": place.pos,
            "row": place.row,
        }  # fmt: skip

    def lose_slot(self) -> None:
        """Without its offsets it reads the table anew, at the end of the log."""
        source = self.source
        self.pull()
        for queue in self.queues.values():
            queue.clear()
        source.flush()
        self.read = len(source.history)
        rows, _ = source.state(self.read)
        place = Place(source.log_number, source.file, source.pos, 0, 0, source.pos)
        keys = sorted(rows)
        self.at = len(self.stream)
        for key in keys:
            mark = "last" if key == keys[-1] else "true"
            change = {"op": "r", "key": key, "after": rows[key]}
            self._append(-1, 0, change, place, source._now(), snapshot=mark)
        self.oldest = len(self.stream)
        self.snapshots += 1

    def fail_over(self) -> None:
        """What was not sent is read from the new log, which has the same transactions.

        By its GTID the connector goes on behind the last transaction that it has sent whole; the
        places of what it sends from there on are the new log's.
        """
        self.restart(0)
        source = self.source
        unsent = [event.commit for event in self.stream[self.at :] if event.commit >= 0]
        self.read = min([self.read, *unsent])
        self.at = self.oldest = len(self.stream)  # nothing of the old log is sent again
        self.taken_over = len(source.history)
        source.relocate(self.read)


def name_of(place: Place) -> str:
    """The name of a file of the log."""
    return f"binlog.{place.file:06d}"


__all__ = ["FIRST_FILE", "KIND", "BinlogConnector"]
