"""How far prompts may stretch the steps of sequences that decode. Plain numbers: the router reads
them, too.
"""

from __future__ import annotations

from typing import Final

#: Without a bound of its own, a sequence that decodes on a worker that prefers decode waits for a
#: step with prompts at most this multiple of the time of the same step without them.
PROMPT_STRETCH: Final = 2.0
