"""Where most of the prompt is held; among equals, where the least work waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.picker import LeastCost
from services.router.routing.scorers import DecodeLoad, MissingPrefix, Queue

if TYPE_CHECKING:
    import random

#: Of a prompt. The first block of many prompts is the same, which says nothing. Not tuned: on one
#: of the traces of benchmarks/routing 0.35 did 7 % better.
MIN_SHARE = 0.1


def policy(rng: random.Random) -> Policy:
    """Pure affinity, whatever the queues."""
    return Policy(
        name="cache-first",
        decode_scorers=(MissingPrefix(MIN_SHARE), Queue(), DecodeLoad(1.0)),
        prefill_scorers=(MissingPrefix(MIN_SHARE), Queue()),
        decode_picker=LeastCost(rng),
        prefill_picker=LeastCost(rng),
    )
