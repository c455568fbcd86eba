"""Questions to somebody who may never answer, with a deadline."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, Generic, TypeVar

from lakemark.errors import DependencyError, LakemarkError
from lakemark.settings.masking import foreign

T = TypeVar("T")
NO_ANSWER: Final = "no-answer"


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
            raise self.late(deadline_s) from error
        except Exception as error:
            raise LakemarkError(
                f"{self._whom} could not be examined: {type(error).__name__}: {foreign(error)}",
                code="unexpected",
                hint="please report it, with `lakemark version`",
            ) from error

    @property
    def answer(self) -> Future[T]:
        """The answer, or what went wrong, once it is there."""
        return self._answer

    def late(self, waited_s: float) -> DependencyError:
        """Return the error that there is no answer after so many seconds."""
        return DependencyError(
            f"{self._whom} did not answer everything within {waited_s:.0f} s",
            code=NO_ANSWER,
            hint="see whether it hangs, and what the network does",
        )


def answers(
    questions: Mapping[str, Question[T]], *, longer_s: float, has_one: bool = False
) -> dict[str, T | LakemarkError]:
    """Return the answer to each of several questions, or the error in its place; never raise.

    The first answer that is none of an error is waited for, however long that takes; the others
    are late `longer_s` after it.

    Args:
        questions: by name.
        longer_s: seconds.
        has_one: there is such an answer already: all of these are the others.
    """
    begun = time.monotonic()
    waiting = {one.answer for one in questions.values()}
    while waiting and not has_one:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        has_one = any(answer.exception() is None for answer in done)
    wait(waiting, timeout=longer_s)
    found: dict[str, T | LakemarkError] = {}
    for name, one in questions.items():
        if not one.answer.done():
            found[name] = one.late(time.monotonic() - begun)
            continue
        try:
            found[name] = one.result(0)
        except LakemarkError as error:
            found[name] = error
    return found
