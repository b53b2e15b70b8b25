"""Choose all workers in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.policies.picker import InTurn

if TYPE_CHECKING:
    import random


def policy(_rng: random.Random) -> Policy:
    """Return the policy: workers in the order of their names, without regard to cache or load."""
    return Policy(
        name="round-robin",
        decode_scorers=(),
        prefill_scorers=(),
        decode_picker=InTurn(),
        prefill_picker=InTurn(),
        uses_prefixes=False,
    )
