"""The default: the least expected milliseconds, for the request and for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.policies.picker import LeastCost
from services.router.routing.policies.scorers import (
    AdapterWait,
    Beside,
    Crowding,
    DecodeLoad,
    Eviction,
    Heat,
    Preference,
    Prefill,
    Queue,
    Transfer,
)

if TYPE_CHECKING:
    import random

#: Number of tokens of a slower stream that one first token is worth: readers notice it more.
DECODE_WEIGHT_TOKENS = 20.0


def policy(rng: random.Random) -> Policy:
    """Return the sum of all costs, in milliseconds.

    T_queue + T_prefill + T_beside + T_transfer + T_adapter + T_eviction + T_crowding + T_heat +
    T_preference + w · decode load. The last one is of decode workers only.
    """
    both = (
        Queue(),
        Prefill(),
        Beside(),
        Transfer(),
        AdapterWait(),
        Eviction(),
        Crowding(),
        Heat(),
        Preference(),
    )
    return Policy(
        name="cost",
        decode_scorers=(*both, DecodeLoad(DECODE_WEIGHT_TOKENS)),
        prefill_scorers=both,
        decode_picker=LeastCost(rng),
        prefill_picker=LeastCost(rng),
    )
