"""The default: the least expected milliseconds, for the request and for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.picker import LeastCost
from services.router.routing.scorers import Crowding, DecodeLoad, Heat, Prefill, Queue, Transfer

if TYPE_CHECKING:
    import random

#: Number of tokens of a slower stream that one first token is worth: readers notice it more.
DECODE_WEIGHT_TOKENS = 20.0


def policy(rng: random.Random) -> Policy:
    """Return T_queue + T_prefill + T_transfer + T_crowding + T_heat + w · decode load."""
    decode_load = DecodeLoad(DECODE_WEIGHT_TOKENS)
    return Policy(
        name="cost",
        decode_scorers=(Queue(), Prefill(), Transfer(), Crowding(), Heat(), decode_load),
        prefill_scorers=(Queue(), Prefill(), Transfer(), Crowding(), Heat()),
        decode_picker=LeastCost(rng),
        prefill_picker=LeastCost(rng),
    )
