"""Where most of the prompt is held; among equals, where the least work waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Policy
from services.router.routing.picker import LeastCost
from services.router.routing.scorers import DecodeLoad, MissingPrefix, Queue

if TYPE_CHECKING:
    import random

#: Found best on the traces of benchmarks/routing; see docs/log.md.
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
