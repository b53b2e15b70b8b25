"""How much of a step prompts may take beside sequences that decode, without a bound of theirs."""

from __future__ import annotations

#: A step with prompt tokens lasts at most this multiple of the same step without them. Workers
#: follow it in their schedules, and routers in their estimates.
PROMPT_STRETCH = 2.0
