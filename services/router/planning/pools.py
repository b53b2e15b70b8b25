"""From wanted preferences to wanted workers by the role that they start with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.planning.base import Counts

if TYPE_CHECKING:
    from services.router.planning.base import Limits


def by_start(wanted: Counts, preferring: Counts, started: Counts, limits: Limits) -> Counts:
    """Return how many workers should be started with each role, where preferences are moved.

    Moves make `wanted` of what there is, so only the sum has to change: a worker is added to the
    role that lacks most, and given back by the one that has most to spare. An autoscaler that
    follows `wanted` itself would undo each move by starting one worker and ending another.
    """
    if not wanted.total:
        return wanted
    prefill, decode = started.prefill, started.decode
    lacks_prefill = wanted.prefill - preferring.prefill
    lacks_decode = wanted.decode - preferring.decode
    while prefill + decode < wanted.total:
        if lacks_prefill >= lacks_decode:
            prefill, lacks_prefill = prefill + 1, lacks_prefill - 1
        else:
            decode, lacks_decode = decode + 1, lacks_decode - 1
    while prefill + decode > wanted.total:
        spares_prefill = prefill > limits.min_prefill
        if spares_prefill and (lacks_prefill <= lacks_decode or decode <= limits.min_decode):
            prefill, lacks_prefill = prefill - 1, lacks_prefill + 1
        else:
            decode, lacks_decode = decode - 1, lacks_decode + 1
    return Counts(prefill, decode)
