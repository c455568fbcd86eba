"""Stands in for kcat where there is none: the options that the pages use, and what they print.

It is a program: `python tests/kit/kcat.py -C -b localhost:9092 -t shop.notifications -o end`.
"""

import argparse
import sys
import uuid
from collections.abc import Sequence

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

TIMEOUT_S = 120.0
OFFSETS = {"beginning": OFFSET_BEGINNING, "end": OFFSET_END}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for; any option that kcat may know and this does not ends the program."""
    parser = argparse.ArgumentParser(prog="kcat", allow_abbrev=False)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("-C", dest="consume", action="store_true")
    way.add_argument("-P", dest="produce", action="store_true")
    parser.add_argument("-b", dest="brokers", required=True)
    parser.add_argument("-t", dest="topic", required=True)
    parser.add_argument("-k", dest="key")
    parser.add_argument("-o", dest="offset", choices=OFFSETS, default="beginning")
    parser.add_argument("-e", dest="until_end", action="store_true")
    parser.add_argument("-f", dest="form", default="%s\\n")
    parser.add_argument("-X", dest="settings", action="append", default=[])
    return parser.parse_args(arguments)


def printed(form: str, message: Message) -> bytes:
    """A record in the form that was asked for; null is empty."""
    parts = {
        "%t": str(message.topic()).encode(),
        "%p": str(message.partition()).encode(),
        "%o": str(message.offset()).encode(),
        "%k": message.key() or b"",
        "%s": message.value() or b"",
        "\\n": b"\n",
    }
    out, at = b"", 0
    while at < len(form):
        part = parts.get(form[at : at + 2])
        out += form[at].encode() if part is None else part
        at += 1 if part is None else 2
    return out


def produce(asked: argparse.Namespace, settings: dict[str, str]) -> None:
    """Each line of the input is a record."""
    failed: list[KafkaError] = []
    producer = Producer(settings)
    for line in sys.stdin.buffer:
        producer.produce(
            asked.topic,
            line.removesuffix(b"\n"),
            asked.key,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    if producer.flush(TIMEOUT_S) or failed:
        sys.exit(f"% ERROR: not delivered: {failed}")


def consume(asked: argparse.Namespace, settings: dict[str, str]) -> None:
    """Print records as they come, until the end of the topic or until Ctrl-C."""
    own = {"group.id": f"kcat-{uuid.uuid4()}", "enable.auto.commit": "false"}
    consumer = Consumer({**settings, **own, "enable.partition.eof": "true"})
    found = consumer.list_topics(asked.topic, timeout=TIMEOUT_S).topics[asked.topic]
    if found.error is not None:
        raise KafkaException(found.error)
    at = OFFSETS[asked.offset]
    consumer.assign([TopicPartition(asked.topic, part, at) for part in found.partitions])
    left = set(found.partitions)
    while left or not asked.until_end:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            sys.stdout.buffer.write(printed(asked.form, message))
            sys.stdout.buffer.flush()
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
            place = f"{asked.topic} [{message.partition()}] at offset {message.offset()}"
            print(f"% Reached end of topic {place}", file=sys.stderr, flush=True)
        else:
            raise KafkaException(error)
    consumer.close()


def main(arguments: Sequence[str]) -> None:
    """Do what the command line says."""
    asked = options(arguments)
    pairs = dict(setting.split("=", 1) for setting in asked.settings)
    settings = {"bootstrap.servers": asked.brokers, "log_level": "0", **pairs}
    (produce if asked.produce else consume)(asked, settings)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(0)
    except KafkaException as refused:
        sys.exit(f"% ERROR: {refused}")
