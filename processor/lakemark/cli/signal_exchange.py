"""A signal is sent, and its answer awaited: what the commands that write signals share.

A signal is read as the pipeline will read it before it is sent, so that what can be refused is
refused here, in the same words.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lakemark.cli import snapshot_view
from lakemark.cli.presentation import error_console
from lakemark.errors import LakemarkError, PipelineError, RefusedError, cut
from lakemark.settings.config import Config
from lakemark.snapshot import notifications, signals
from lakemark.snapshot.run_tracker import FollowedRun, then
from lakemark.snapshot.signal_parts import parts_of

_MOST_BYTES: Final = 1_000_000  # brokers take 1 MiB of a record unless they are told otherwise
_POLL_S: Final = 0.5  # Ctrl-C is noticed after this


class Request:
    """A signal that is about to be sent; fields that are None are left out."""

    # By what another signal than execute-snapshot may be answered under a run's id.
    _ANSWERS: Final = {
        "stop-snapshot": "ABORTED",
        "pause-snapshot": "PAUSED",
        "resume-snapshot": "RESUMED",
    }

    def __init__(self, kind: str, data: dict[str, Any], id_: str = "") -> None:
        self.kind = kind
        self.id = id_ or str(uuid.uuid4())
        known = {name: value for name, value in data.items() if value is not None}
        self.value = msgspec.json.encode({"id": self.id, "type": kind, "data": known})

    @property
    def is_run(self) -> bool:
        """True if it asks for a run."""
        return self.kind in {"execute-snapshot", "verify-snapshot"}

    def check(self, pipeline: str) -> None:
        """Refuses what the pipeline will refuse without looking at its tables."""
        if len(self.value) > _MOST_BYTES:
            raise RefusedError(
                "the signal is larger than Kafka takes",
                code="too-large",
                hint="send several with fewer keys each, or take all rows",
            )
        read = signals.read(pipeline.encode(), self.value, pipeline=pipeline, unnamed=self.id)
        if isinstance(read, signals.Rejection):
            raise RefusedError(read.message, code=read.code, hint=read.hint)

    def does(self, notification: notifications.Notification) -> bool:
        """Say whether a notification is of what the signal does to runs, under their ids."""
        return notification.type == self._ANSWERS.get(self.kind)

    def answers(self, pipeline: str, connectors: Sequence[str]) -> list[str]:
        """Return the ids under which it is answered, see `signal_parts`."""
        read = signals.read(pipeline.encode(), self.value, pipeline=pipeline, unnamed=self.id)
        return [read.id] if isinstance(read, signals.Rejection) else parts_of(read, connectors)


def exchange(config: Config, signal: Request, *, within: float, wait: bool) -> list[FollowedRun]:
    """Sends a signal and returns what has come of it: of several connectors, of each one's part.

    A part that nobody has answered in time, while others were, is there as asked only.

    1. It is checked.  2. The end of the notifications is noted.  3. It is written.
    4. Its answer is awaited.  5. The run is followed, if that was asked for.

    Args:
        config: says which pipeline.
        signal: what to send.
        within: seconds to wait for the answer.
        wait: whether to follow the run to its end, which may take any time.

    Raises:
        RefusedError: the pipeline would refuse it; nothing was sent.
        PipelineError: the pipeline never ran, or none answered in time.
        DependencyError: the brokers are away.
        KeyboardInterrupt: in steps 4 and 5; the user was told that the signal stays.
    """
    signal.check(config.name)
    _check_started(config)
    ids = signal.answers(config.name, _connectors(config))
    from lakemark.kafka.records import Tail, publish  # noqa: PLC0415

    with Tail(config, config.topics.notifications) as tail:
        publish(config, config.topics.signals, [(config.name.encode(), signal.value)])
        try:
            found = _answered(signal, ids, tail, within)
            if wait and not all(run.has_ended for run in found):
                found = _followed(found, tail)
        except KeyboardInterrupt:
            snapshot_view.say_left(error_console(), signal.id, is_run=signal.is_run)
            raise
    if not found:
        raise _no_answer(config, signal.id)
    answered = {run.id for run in found}
    return found + [FollowedRun(name) for name in ids if len(ids) > 1 and name not in answered]


def require_answers(config: Config, found: Sequence[FollowedRun]) -> None:
    """Raise `PipelineError` (`no-answer`) if a part of a signal was not answered in time."""
    for run in found:
        if run.last is None:
            raise _no_answer(config, run.id)


def _connectors(config: Config) -> list[str]:
    """Return the qualifiers of the connectors, as the pipeline knows them or Connect; else [""].

    Raises:
        DependencyError, InvalidConfig: of several none is known.
    """
    if not config.several:
        return [""]
    from lakemark.connectors.parts import parts_of as connectors_of  # noqa: PLC0415
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.snapshot import listed_connectors  # noqa: PLC0415

    known = listed_connectors.remembered(read_compacted(config, config.topics.progress))
    found, why = list[str](), list[LakemarkError]()
    for part in connectors_of(config):
        listed = known.get(part.name)
        try:
            found.append((listed and listed.qualifier) or part.read(attempts=1).qualifier)
        except LakemarkError as error:  # whoever it is answers when it is back
            why.append(error)
    if not found:
        raise why[0]
    return found


def _check_started(config: Config) -> None:
    from lakemark.kafka.brokers import Cluster  # noqa: PLC0415

    wanted = [config.topics.signals, config.topics.notifications]
    with Cluster(config) as cluster:
        # Writing to a topic that does not exist may create it, with the wrong settings.
        missing = set(wanted) - set(cluster.partition_counts(wanted))
    if missing:
        raise PipelineError(
            f"the pipeline {config.name} has never run: there is no topic {min(missing)}",
            code="not-started",
            hint="start it with `lakemark run`",
        )


def _answered(signal: Request, ids: Sequence[str], tail: Any, within: float) -> list[FollowedRun]:
    """Return the runs after the first notifications that answer; those without one are left out."""
    found: dict[str, FollowedRun] = {}
    deadline = time.monotonic() + within
    while (left := deadline - time.monotonic()) > 0 and not found.keys() >= {*ids}:
        said = notifications.read(tail.value(min(left, _POLL_S)))
        if said is None or not (said.id in ids or signal.does(said)):
            continue
        run = then(found.get(said.id, FollowedRun(said.id)), said)
        if run.last is None:
            continue
        found[said.id] = run
        if len(ids) == 1:
            break
    return [*found.values()]


def _followed(runs: Sequence[FollowedRun], tail: Any) -> list[FollowedRun]:
    found = {run.id: run for run in runs}
    with snapshot_view.Bars(error_console()) as shown:
        for run in runs:
            shown.update(run)
        while not all(run.has_ended for run in found.values()):
            said = notifications.read(tail.value(_POLL_S))
            if said is not None and said.id in found:
                found[said.id] = then(found[said.id], said)
                shown.update(found[said.id])
    return [*found.values()]


def _no_answer(config: Config, name: str) -> PipelineError:
    hint = (
        f"the signal is in {config.topics.signals} and will be carried out when the pipeline reads"
        " it: see whether `lakemark run` is running (`lakemark status`) with this configuration,"
        " and whether another run goes first (`lakemark snapshot status`)"
    )
    return PipelineError(
        f"no pipeline has answered the signal {cut(name)} in time",
        code="no-answer",
        hint=hint,
    )
