"""The backoff: how long to wait before something that failed is tried again."""

from dataclasses import dataclass
from typing import Final

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0
GOOD_S: Final = 10 * LONGEST_WAIT_S  # what went well for so long fails for the first time again


@dataclass(slots=True)
class Backoff:
    """Waits that double from `FIRST_WAIT_S` to `LONGEST_WAIT_S`; `attempts` is their number."""

    attempts: int = 0

    def failed(self, *, after_s: float) -> float:
        """Return the seconds to wait after a failure.

        Args:
            after_s: for how many seconds it went well before.
        """
        if after_s > GOOD_S:
            self.attempts = 0
        self.attempts += 1
        doublings = min(self.attempts - 1, 30)  # there may be any number of attempts
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * float(1 << doublings))
