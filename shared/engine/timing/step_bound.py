"""How long steps with prompts may be. Plain numbers: the router reads them, too."""

from __future__ import annotations

from typing import Final

#: Without a bound of its own, a sequence waits for a step with prompts at most this multiple of the
#: time of the same step without them,
PROMPT_STRETCH: Final = 2.0
#: and for prompts of at most this multiple of what a step takes with next to no sequences: one of
#: many is long already,
MOST_PROMPTS: Final = 1.0
#: but prompts get at least this multiple of the step, so that they go on beside any number.
LEAST_PROMPTS: Final = 1 / 3
#: The longest computation of a step of prompts alone. A more urgent prompt waits for its end, a
#: prompt in it for all of them; so does what is handed over, unless the step has parts.
LONGEST_STEP_MS: Final = 200.0
#: Between two looks for other work, a step of prompts alone that is computed in parts computes the
#: layers that this time has room for, and one at least.
PART_MS: Final = 5.0


def prompt_room_ms(plain_ms: float, least_ms: float) -> float:
    """Return the time of prompts in a step that takes `plain_ms` without them.

    `least_ms`: what a step takes with next to no sequences.
    """
    most_ms = max(MOST_PROMPTS * least_ms, LEAST_PROMPTS * plain_ms)
    return min((PROMPT_STRETCH - 1) * plain_ms, most_ms)
