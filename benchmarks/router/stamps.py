"""Times as tokens: a mock worker says when it sent a token by which token it sends.

Processes of one machine share the monotonic clock, so a client that reads a token's text knows how
long it took, and nothing has to be added to the messages or to the router.
"""

from __future__ import annotations

import re
import time

TICK_NS = 25_000
#: As large a vocabulary as today's models have; the clock's face has this many ticks (3.3 s).
NUM_STAMPS = 2**17
#: Ids below are the byte alphabet and the end token.
FIRST_STAMP_ID = 257

#: How a stamp looks in an event, at the beginning of a text or after another one. A request id in a
#: header may begin with six digits, too.
PATTERN = re.compile(rb"(?<=[\d\"]) (\d{6})")


def stamp_text(stamp: int) -> str:
    """The token's text: as long as usual words are."""
    return f" {stamp:06d}"


def stamp_now() -> int:
    """Now, as a place on the clock's face."""
    return time.monotonic_ns() // TICK_NS % NUM_STAMPS


def age_ms(stamp: int, at_ns: int) -> float:
    """Milliseconds from a stamp to `at_ns` of the monotonic clock; it must be under a turn."""
    return (at_ns // TICK_NS - stamp) % NUM_STAMPS * TICK_NS / 1e6
