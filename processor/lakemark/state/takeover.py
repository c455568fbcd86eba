"""The takeover of a pipeline by a process: nobody else runs it, as far as can be known.

The brokers give the turn to one process at a time. One that is known to have ended need not be
waited for, where that can be seen: on the machine that it ran on.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from lakemark.errors import PipelineError
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.ownership import Owner, Turn, this_process

QUIET_S: Final = 5.0  # a turn that comes within these is no news
ONCE_WAIT_S: Final = 30.0  # for the turn; longer than a killed process is taken for alive


class StoppedError(Exception):
    """Told to stop before there was anything to stop."""


class Takeover:
    """One process's way to the pipeline's checkpoint.

    Args:
        name: the pipeline's.
        turn: this process's place in the queue.
        stopping: ends the waiting.
        once: whether another process that runs the pipeline is an error.
    """

    def __init__(
        self, name: str, turn: Turn, stopping: threading.Event, *, once: bool = False
    ) -> None:
        self.owner = this_process()
        self._name, self._turn, self._stopping, self._once = name, turn, stopping, once
        self._took = False
        self._rivals: set[str] = set()

    def of(self, checkpoint: Checkpoint, standby: Callable[[Owner | None], None]) -> bool:
        """Wait until no other process runs the pipeline, and make it this one's.

        A process that took it from this one was alive then, even if its number seems dead from
        here: it is waited for until the brokers say that it ended. So two processes that cannot see
        each other do not take the pipeline from each other for ever.

        Args:
            checkpoint: the pipeline's.
            standby: told once who runs it, when it is going to take longer.

        Returns:
            whether `standby` was told.

        Raises:
            PipelineError: `already-running`, with `once`.
            LakemarkError: the brokers do not say whose turn it is.
            StoppedError: told to stop meanwhile.
        """
        begun, said = time.monotonic(), False
        taker = checkpoint.owner() if self._took else None
        if taker is not None and taker.token != self.owner.token:
            self._rivals.add(taker.token)
        while not self._turn.held:
            owner = checkpoint.owner()
            if owner is not None and self._is_over(owner):
                break
            waited = time.monotonic() - begun
            if self._turn.problem is not None and waited > QUIET_S:
                raise self._turn.problem
            if waited > QUIET_S and not said:
                said = True
                standby(owner)
            if self._once and waited > ONCE_WAIT_S:
                raise PipelineError(
                    f"another process runs the pipeline {self._name}",
                    code="already-running",
                    hint="stop it first: what it runs is done by it",
                )
            if self._stopping.wait(0.1):
                raise StoppedError
        checkpoint.take(self.owner)
        self._took = True
        return said

    def _is_over(self, owner: Owner) -> bool:
        if owner.token == self.owner.token:
            return True
        return owner.token not in self._rivals and owner.is_dead()
