"""The board's feeds, a thread each: end offsets, signals, notifications, source, last hour.

The last hour is read when the pipeline becomes this process's, and stored once a minute.

No batch waits for a feed. While the brokers are away the lag is unknown and the board says why:
Spark's own client tries for minutes before the query fails. Signals and notifications are read from
a little before the end of their topics, so that a restart forgets little.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from lakemark.connectors.connector import Connector
from lakemark.errors import LakemarkError
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.client_errors import Admission
from lakemark.kafka.client_settings import by_offset
from lakemark.kafka.records import publish, read_compacted
from lakemark.ops import history_record, lag, source_watch
from lakemark.ops.board import Board
from lakemark.ops.source_side import SourceSide
from lakemark.settings.config import Config
from lakemark.settings.masking import foreign
from lakemark.snapshot import notifications

log = structlog.get_logger(__name__)

_ENDS_EVERY_S: Final = 5.0
_ENDS_WITHIN_S: Final = 10.0  # less than `kafka.timeout` may be: who is away shall be known soon
_BACK: Final = 2000  # records of a partition read again at the start
_POLL_S: Final = 0.5
_AGAIN_S: Final = 5.0
_STOP_WITHIN_S: Final = 5.0
_KEEP_EVERY_S: Final = 60.0


@contextmanager
def running(
    config: Config,
    board: Board,
    watched: Sequence[tuple[Config, Connector]],
    patterns: Sequence[str],
    leaving: threading.Event,
) -> Iterator[None]:
    """Feed the board while the block runs.

    Args:
        config: says where the brokers are.
        board: is told.
        watched: the connectors that write the change topics, each with its part of the settings.
        patterns: Java regular expressions of these topics.
        leaving: set when the process is about to end as it was told to: then the last minute is
            stored too. A process that stops for another reason may not own the pipeline any more.
    """
    stopping = threading.Event()
    runs: list[tuple[str, Callable[..., None], Config, tuple[object, ...]]] = [
        ("ends", _ends, config, (*patterns,)),
        ("answers", _answers, config, ()),
        ("history", _history, config, (leaving,)),
        *(("source", source_watch.keep_looking, own, (one,)) for own, one in watched),
    ]
    threads = [
        threading.Thread(target=run, args=(of, board, stopping, *more), name=name, daemon=True)
        for name, run, of, more in runs
    ]
    for own, one in watched:
        unseen = SourceSide(source_watch.expected(own, one)).unseen(time.time())
        board.source(unseen, one.qualifier)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(_STOP_WITHIN_S)
        board.ends(None)
        for _, one in watched:
            board.source(None, one.qualifier)


def _ends(config: Config, board: Board, stopping: threading.Event, *patterns: str) -> None:
    """Feed the end offsets of the change topics every few seconds; each first offset once."""
    starts: dict[tuple[str, int], int] = {}
    reported = False
    while not stopping.is_set():
        try:
            with Cluster(_impatient(config)) as cluster:
                while not stopping.is_set():
                    topics = cluster.topics(*patterns)
                    ends = cluster.end_offsets(topics)
                    new = {topic for topic, partition in ends if (topic, partition) not in starts}
                    starts |= cluster.start_offsets(new)
                    board.ends(lag.Ends(lag.offsets(starts), lag.offsets(ends)))
                    reported = False
                    stopping.wait(_ENDS_EVERY_S)
        except LakemarkError as error:
            board.ends(None, why=error)
            if not reported:  # once, not every few seconds
                log.warning(
                    "lag.unknown", code=error.code, reason=error.message, hint=error.hint,
                    retried=True,
                )  # fmt: skip
            reported = True
        except Exception:
            board.ends(None)
            log.exception("lag.internal_error")
        stopping.wait(_ENDS_EVERY_S)


def _impatient(config: Config) -> Config:
    """Return the settings with a shorter timeout for the brokers."""
    timeout = min(config.kafka.timeout, timedelta(seconds=_ENDS_WITHIN_S))
    return config.model_copy(update={"kafka": config.kafka.model_copy(update={"timeout": timeout})})


def _answers(config: Config, board: Board, stopping: threading.Event) -> None:
    """Feed signals and notifications as they come."""
    while not stopping.is_set():
        try:
            admission = Admission()
            with _reader(config, admission) as consumer:
                while not stopping.is_set():
                    message = consumer.poll(_POLL_S)
                    admission.require()
                    if message is not None and message.error() is None:
                        _tell(config, board, message)
        except (LakemarkError, KafkaException) as error:
            log.warning("answers.unread", reason=foreign(error), retried=True)
        except Exception:
            log.exception("answers.internal_error")
        stopping.wait(_AGAIN_S)


@contextmanager
def _reader(config: Config, admission: Admission) -> Iterator[Consumer]:
    """Give a consumer that begins a little before the end of both topics, for the block."""
    names = [config.topics.signals, config.topics.notifications]
    with Cluster(config) as cluster:
        starts, ends = cluster.start_offsets(names), cluster.end_offsets(names)
    consumer = Consumer({**by_offset(config), "error_cb": admission, "auto.offset.reset": "latest"})
    try:
        consumer.assign(
            [
                TopicPartition(*place, max(starts.get(place, 0), end - _BACK))
                for place, end in ends.items()
            ]
        )
        yield consumer
    finally:
        consumer.close()


def _tell(config: Config, board: Board, message: Message) -> None:
    value = message.value()
    blob = value if isinstance(value, bytes) else None
    if message.topic() == config.topics.notifications:
        found = notifications.read(blob)
        if found is not None:
            board.notification(found)
        return
    if message.key() != config.name.encode():
        return  # of another pipeline
    unnamed = f"{message.topic()}-{message.partition()}-{message.offset()}"
    board.signal(blob, sent_ms=message.timestamp()[1], unnamed=unnamed)


def _history(
    config: Config, board: Board, stopping: threading.Event, leaving: threading.Event
) -> None:
    """Recall the stored last hour; only then store it, once a minute."""
    while not _tried(_recall, config, board):
        if stopping.wait(_AGAIN_S):
            return
    while not stopping.wait(_KEEP_EVERY_S):
        _tried(_keep, config, board)
    if leaving.is_set():
        _tried(_keep, config, board)


def _tried(step: Callable[[Config, Board], None], config: Config, board: Board) -> bool:
    """Take a step and say whether it went well; a failure is only logged: nothing depends on it."""
    try:
        step(config, board)
    except LakemarkError as error:
        log.warning("history.unkept", code=error.code, reason=error.message, retried=True)
        return False
    except Exception:
        log.exception("history.internal_error")
        return False
    return True


def _recall(config: Config, board: Board) -> None:
    value = read_compacted(config, config.topics.progress).get(history_record.KEY)
    try:
        board.recalled(history_record.decode(value))
    except history_record.UnreadableError as error:
        log.warning("history.ignored", reason=str(error), hint="the charts begin anew")


def _keep(config: Config, board: Board) -> None:
    value = history_record.encode(board.history().stretches)
    publish(config, config.topics.progress, [(history_record.KEY, value)])
