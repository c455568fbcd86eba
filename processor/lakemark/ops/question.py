"""A question to somebody who may never answer, with a deadline."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from lakemark.errors import DependencyError, LakemarkError
from lakemark.settings.masking import foreign

T = TypeVar("T")


class Question(Generic[T]):
    """A question in a thread of its own, which cannot keep the process alive if no answer comes.

    Args:
        whom: the one who is asked, for the messages.
        question: asks.
    """

    def __init__(self, whom: str, question: Callable[[], T]) -> None:
        self._whom = whom
        self._answer: Future[T] = Future()
        threading.Thread(target=self._ask, args=[question], daemon=True).start()

    def _ask(self, question: Callable[[], T]) -> None:
        try:
            self._answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised again in `result`
            self._answer.set_exception(error)

    def result(self, deadline_s: float) -> T:
        """Return the answer.

        Raises:
            LakemarkError: there is none, or none in time.
        """
        try:
            return self._answer.result(deadline_s)
        except LakemarkError:
            raise
        except TimeoutError as error:
            raise DependencyError(
                f"{self._whom} did not answer everything within {deadline_s:.0f} s",
                code="no-answer",
                hint="see whether it hangs, and what the network does",
            ) from error
        except Exception as error:
            raise LakemarkError(
                f"{self._whom} could not be examined: {type(error).__name__}: {foreign(error)}",
                code="unexpected",
                hint="please report it, with `lakemark version`",
            ) from error
