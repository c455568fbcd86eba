"""Waiting for a producer's records to be with the brokers, as long as it gets on."""

import math
import time

from confluent_kafka import Producer


def flushed(producer: Producer, patience_s: float, *, longest_s: float = math.inf) -> int:
    """Waits until the brokers have confirmed everything, or nothing more for a while.

    How long that takes depends on how much there is: only standing still is a reason to give up.

    Args:
        producer: whose queue is emptied.
        patience_s: seconds within which something must be confirmed.
        longest_s: seconds after which it is given up although it gets on.

    Returns:
        how many records are left.
    """
    end = time.monotonic() + longest_s
    left = int(producer.flush(patience_s))
    while left and time.monotonic() < end:
        before, left = left, int(producer.flush(patience_s))
        if left >= before:
            break
    return left
