"""How far prompts may stretch the steps of sequences that decode. Plain numbers: the router reads
them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Without a bound of its own, a sequence waits for a step with prompts at most this multiple of the
#: time of the same step without them, by what its worker prefers.
PROMPT_STRETCH: Final[Mapping[Role, float]] = {Role.DECODE: 2.0, Role.PREFILL: 4.0}
