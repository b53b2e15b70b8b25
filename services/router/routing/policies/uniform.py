"""Choose a worker at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.policies.picker import Shuffled

if TYPE_CHECKING:
    import random


def policy(rng: random.Random) -> Policy:
    """Return the policy: workers in random order, without regard to cache or load."""
    return Policy(
        name="random",
        decode_scorers=(),
        prefill_scorers=(),
        decode_picker=Shuffled(rng),
        prefill_picker=Shuffled(rng),
        uses_prefixes=False,
    )
