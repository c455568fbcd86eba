"""Asks a pipeline for a snapshot, and follows it to its end.

python send_signal.py localhost:9092 shop public.customers public.orders
"""

import json
import sys
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

brokers, pipeline, *tables = sys.argv[1:]
signal = {"id": str(uuid.uuid4()), "type": "execute-snapshot", "data": {"data-collections": tables}}

# Where the answers begin: asked before the signal is sent, so that none is missed.
answers = Consumer({"bootstrap.servers": brokers, "group.id": signal["id"]})
place = TopicPartition(f"{pipeline}.notifications", 0)
place.offset = answers.get_watermark_offsets(place, timeout=30)[1]
answers.assign([place])

# The key says whom it is for: a signal with another key than the pipeline's name is passed over.
producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
producer.produce(f"{pipeline}.signals", key=pipeline, value=json.dumps(signal))
if producer.flush(30):
    sys.exit("the signal could not be sent")

while True:
    record = answers.poll(60)
    if record is None:
        sys.exit("nothing was heard for a minute: does the pipeline run?")
    if record.error():
        sys.exit(str(record.error()))
    said = json.loads(record.value())
    if said["id"] != signal["id"]:
        continue
    print(said["type"], json.dumps(said.get("additional_data") or {}))
    if said["type"] in {"COMPLETED", "ABORTED", "REJECTED"}:
        answers.close()
        sys.exit(said["type"] != "COMPLETED")
