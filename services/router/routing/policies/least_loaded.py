"""Choose the worker with the least queued work, without regard to cached prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.policies.picker import LeastCost
from services.router.routing.policies.scorers import DecodeLoad, Queue

if TYPE_CHECKING:
    import random


def policy(rng: random.Random) -> Policy:
    """Return the policy: least queue for prompts; least queue and shortest step for answers."""
    return Policy(
        name="least-loaded",
        decode_scorers=(Queue(), DecodeLoad(1.0)),
        prefill_scorers=(Queue(),),
        decode_picker=LeastCost(rng),
        prefill_picker=LeastCost(rng),
        uses_prefixes=False,
    )
