"""Keeps a table of another PostgreSQL equal to an output topic, exactly once.

python upsert.py localhost:9092 shop.clean.public.orders postgresql://... orders [--until-end]

Rows and the offsets up to which they were applied are committed in one transaction of the target:
whatever is killed, it goes on where the table is.
"""

import json
import sys

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg import sql

brokers, topic, target, table = sys.argv[1:5]
until_end = "--until-end" in sys.argv[5:]

OFFSETS = (
    "CREATE TABLE IF NOT EXISTS applied"
    " (topic text, part int, next bigint, PRIMARY KEY (topic, part))"
)
APPLIED = (
    "INSERT INTO applied VALUES (%s, %s, %s)"
    " ON CONFLICT (topic, part) DO UPDATE SET next = EXCLUDED.next"
)


def payload(raw: bytes) -> dict:
    """A key or value, with or without its schema."""
    read = json.loads(raw)
    return read["payload"] if read.keys() == {"schema", "payload"} else read


def apply(cursor: psycopg.Cursor, key: dict, row: dict | None) -> None:
    """Puts a row in the place of the one that is there, or takes that away."""
    comma, cells = sql.SQL(", "), row or key
    into, names = sql.Identifier(table), comma.join(map(sql.Identifier, cells))
    values = comma.join(sql.Placeholder() * len(cells))
    if row is None:
        query = sql.SQL("DELETE FROM {} WHERE ({}) = ({})").format(into, names, values)
    else:
        changes = comma.join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(c)) for c in row)
        query = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}").format(
            into, names, values, comma.join(map(sql.Identifier, key)), changes
        )
    cursor.execute(query, list(cells.values()))


with psycopg.connect(target) as connection:
    with connection.transaction():
        connection.execute(OFFSETS)
    applied = dict(connection.execute("SELECT part, next FROM applied WHERE topic = %s", [topic]))
    connection.commit()
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"upsert.{table}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",  # what a transaction takes back was never there
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, part, applied.get(part, 0)) for part in partitions])
    left, count = set(partitions), 0
    while left or not until_end:
        records = consumer.consume(500, timeout=1.0)
        with connection.transaction(), connection.cursor() as cursor:
            for record in records:
                if record.error():
                    if record.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                        raise SystemExit(str(record.error()))
                    left.discard(record.partition())
                    continue
                event = payload(record.value()) if record.value() else {}
                apply(cursor, payload(record.key()), event.get("after"))
                cursor.execute(APPLIED, [topic, record.partition(), record.offset() + 1])
                count += 1
    print(f"{count} records applied")
    consumer.close()
