"""The ownership of a pipeline: one of several processes runs it, and the others stand by.

Two things decide, for two reasons:

* *who may write* is a token in the checkpoint: whoever takes over puts its own there, and anybody
  else begins no batch any more, however long its process slept. The batch that it was in may still
  reach tables: they take a batch once, whoever brings it, and it is the same batch;
* *who is next* is a consumer group on the control topic, which has one partition: the brokers give
  it to another process when its owner left or died, and to nobody else before.

Losing the group alone, as when the brokers are away, changes nothing until somebody takes over.
"""

import os
import socket
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lakemark.errors import DependencyError, LakemarkError
from lakemark.kafka import brokers, client_errors, own_topics
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake

log = structlog.get_logger(__name__)

SUPERSEDED: Final = "superseded"
# The shortest that brokers allow by default: so long does it take until a process that was killed
# is known to be dead.
SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_500
_POLL_S: Final = 0.25
_AGAIN_S: Final = 1.0


class Owner(msgspec.Struct, frozen=True):
    """The process that runs the pipeline.

    Attributes:
        token: of this very process.
        host: where it runs: the machine, in this boot, and the space that process numbers are of;
            containers that share the machine's name have spaces of their own.
        pid: its number there.
        begun: when it was started, in the machine's own count; "" where that cannot be known.
    """

    token: str
    host: str = ""
    pid: int = 0
    begun: str = ""

    def is_dead(self) -> bool:
        """Say whether it ran on this machine and has ended: the brokers need not be waited for."""
        return self.host == _host() and self.begun != _begun(self.pid)


def this_process() -> Owner:
    """Return a new token for this process."""
    return Owner(uuid.uuid4().hex, _host(), os.getpid(), _begun(os.getpid()))


def superseded(by: Owner | None) -> DependencyError:
    """Return the error for a pipeline that another process runs now."""
    where = f"process {by.pid} on {by.host.partition('/')[0]}" if by else "another process"
    return DependencyError(
        f"{where} has taken over this pipeline",
        code=SUPERSEDED,
        hint="this one stands by, and takes over again when that one ends",
    )


def _host() -> str:
    boot = space = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()}/{boot}/{space}"


def _begun(pid: int) -> str:
    """Return when a process was started, in clock ticks since the boot; "" if none runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = fields.rpartition(")")[2].split()
    return "" if state in {"Z", "X"} else rest[18]


class Turn:
    """This process's place in the queue; `held` while it is the first.

    Joins with `with`, leaves at its end, so that the next one need not wait.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.problem: LakemarkError | None = None
        self._held = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._queue, name="ownership", daemon=True)

    @property
    def held(self) -> bool:
        """Say whether the brokers have given this process the pipeline."""
        return self._held.is_set()

    def __enter__(self) -> Self:
        """Join the queue, in a thread of its own."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the queue."""
        self._over.set()
        self._thread.join(SESSION_MS / 1000)

    def _queue(self) -> None:
        while not self._over.is_set():
            try:
                self._wait_for_topic()
                self._stand()
            except (LakemarkError, KafkaException) as error:
                self._held.clear()
                if not isinstance(error, LakemarkError):
                    error = _explained(self.config, error.args[0])
                self.problem = error
                log.debug("ownership.unknown", reason=str(error))
                self._over.wait(_AGAIN_S)
            except Exception as error:
                self._held.clear()
                self.problem = DependencyError(
                    f"the queue of the processes was left: {type(error).__name__}",
                    code="internal-error",
                    hint="see the log; it is joined again",
                )
                log.exception("ownership.internal_error", retried=True)
                self._over.wait(_AGAIN_S)

    def _wait_for_topic(self) -> None:
        topic = self.config.topics.control
        with brokers.Cluster(self.config, over=self._over) as cluster:
            while not (cluster.partition_counts([topic]) or self._over.wait(_POLL_S)):
                pass

    def _stand(self) -> None:
        """Stand in the queue until the end, or an error."""
        admission = client_errors.Admission()
        consumer = Consumer(
            {
                **brokers.librdkafka_options(self.config),
                "error_cb": admission,
                "group.id": own_topics.owner_group(self.config),
                # the eager strategies would move the partition whenever somebody joins
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        try:
            consumer.subscribe(
                [self.config.topics.control],
                on_assign=self._given,
                on_revoke=self._taken,
                on_lost=self._taken,
            )
            while not self._over.is_set():
                message = consumer.poll(_POLL_S)
                admission.require()
                error = message.error() if message is not None else None
                if error is not None and not error.retriable():
                    raise KafkaException(error)
                self.problem = None
        finally:
            consumer.close()
            self._held.clear()

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)  # only the place counts, not the records
            self._held.set()

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            consumer.incremental_unassign(partitions)
            self._held.clear()


def _explained(config: Config, error: KafkaError) -> LakemarkError:
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
        return client_errors.away(config, error.str())
    group = own_topics.owner_group(config)
    message = (
        f"lakemark may not join the group {group}: the brokers cannot tell which process runs the "
        "pipeline"
    )
    hint = f"let somebody who may run: {own_topics.allow_command(config, ['read'], group=group)}"
    return InvalidConfig([Mistake("kafka", message, hint)], source="Kafka")


def decode(blob: bytes | None) -> Owner | None:
    """Return the owner in the checkpoint's record, if any."""
    return msgspec.json.decode(blob, type=Owner) if blob else None


def encode(owner: Owner) -> bytes:
    """Invert `decode`."""
    return msgspec.json.encode(owner)
