"""How long steps with prompts may be. Plain numbers: the router reads them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Without a bound of its own, a sequence waits for a step with prompts at most this multiple of the
#: time of the same step without them, by what its worker prefers.
PROMPT_STRETCH: Final[Mapping[Role, float]] = {Role.DECODE: 2.0, Role.PREFILL: 4.0}
#: The longest computation of a step of prompts alone. A more urgent prompt waits for its end, a
#: prompt in it for all of them; so does what is handed over, unless the step has parts.
LONGEST_STEP_MS: Final = 200.0
#: Between two looks for other work, a step of prompts alone that is computed in parts computes the
#: layers that this time has room for, and one at least.
PART_MS: Final = 5.0
