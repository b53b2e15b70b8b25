"""How much load a cluster is under, and how long it is watched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Of a run. What its cells break and promise is the same at every scale."""

    num_streams: int
    #: So many streams have had their first token when the victim is sent.
    num_flowing: int
    #: Different requests of the streams.
    num_asks: int
    #: Of one router; more wait in its queue.
    max_concurrent_requests: int
    #: Of one worker.
    num_blocks: int
    #: Prompts of 1,500 tokens that need more blocks than all decode workers have.
    num_long: int
    #: Where an outcome comes sooner, the other streams are watched for so long.
    min_watch_s: float
    #: Whether the times between tokens are compared with those of the quiet cluster.
    compares_itl: bool


FULL = Scale(
    num_streams=32,
    num_flowing=12,
    num_asks=48,
    max_concurrent_requests=28,
    num_blocks=640,
    num_long=20,
    # The p99 of one second's gaps is the longest or the next.
    min_watch_s=3.0,
    compares_itl=True,
)
#: A stream by each door, for a suite that has a minute and does not judge speed. Streams ask
#: without a pause: each costs half a core as long as a cell watches.
SMALL = Scale(
    num_streams=2,
    num_flowing=2,
    num_asks=12,
    max_concurrent_requests=4,
    num_blocks=224,
    num_long=5,
    min_watch_s=0.3,
    compares_itl=False,
)
