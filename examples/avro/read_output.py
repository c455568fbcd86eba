"""Events of an output topic in Avro, up to its end: see README.md for how it is started."""

import sys
import uuid

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

brokers, topic, registry = sys.argv[1:4]
client = SchemaRegistryClient({"url": registry})
# One for keys and one for values: each keeps the schemas that it has read.
key_of, event_of = AvroDeserializer(client), AvroDeserializer(client)
consumer = Consumer(
    {
        "bootstrap.servers": brokers,
        "group.id": str(uuid.uuid4()),
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",  # what a transaction takes back was never there
    }
)
left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
while left:
    for record in consumer.consume(500, timeout=1.0):
        if record.error():
            if record.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                raise SystemExit(str(record.error()))
            left.discard(record.partition())
            continue
        key = key_of(record.key(), SerializationContext(topic, MessageField.KEY))
        event = event_of(record.value(), SerializationContext(topic, MessageField.VALUE))
        print(key, event["op"], event["after"]) if event else print(key, "tombstone")
consumer.close()
