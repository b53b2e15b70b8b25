"""Whether workers have room for another prompt, or the prompt should wait in the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.places.mode import PlacementMode
from services.router.workers.endpoint import preferring
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.routing.book import Book
    from services.router.workers.endpoint import Endpoint

#: With fewer prompts than this a worker may run idle while the next one is on its way.
MIN_PROMPTS = 2
#: Share of the pool that may be used: sequences grow, and a full pool preempts and recomputes.
KV_SHARE = 0.9


class WorkerRoom:
    """Tells whether workers have room, from the router's own book, which is never out of date."""

    def __init__(
        self,
        endpoints: Callable[[Role], Sequence[Endpoint]],
        book: Book,
        *,
        max_worker_queue_ms: float,
        mode: PlacementMode = PlacementMode.DISAGGREGATED,
    ) -> None:
        """Use this book for `endpoints`, those that serve a role.

        `max_worker_queue_ms`: longest queue of prompts that a worker should have. `mode`: who may
        compute prompts.
        """
        self._mode = mode
        self._endpoints = endpoints
        self._book = book
        self._max_queue_ms = max_worker_queue_ms

    def __call__(self, num_tokens: int) -> bool:
        """Return whether some worker's queue is short and some decode worker's pool has space.

        A decode worker that receives prompts in host memory has more space, if others compute them.
        """
        able = [e for e in self._endpoints(Role.DECODE) if e.usable]
        writers = able
        if self._mode is PlacementMode.DISAGGREGATED:
            writers = preferring(able, Role.DECODE) or able
        now_s = self._book.clock()
        if not writers:
            # Let the request in: routing reports what is missing, and waiting here does not help.
            # Workers that make vectors alone have no decode workers beside them.
            makers = [e for e in self._endpoints(Role.PREFILL) if e.usable and _makes_only(e)]
            return not makers or any(has_time(e, now_s, self._max_queue_ms) for e in makers)
        usable = [e for e in self._endpoints(Role.PREFILL) if e.usable]
        readers = preferring(usable, Role.PREFILL) or writers
        if self._mode is PlacementMode.ELASTIC:
            readers = [*usable, *writers]
        elif self._mode is PlacementMode.AGGREGATED:
            readers = writers
        may_land = self._mode is PlacementMode.DISAGGREGATED and readers is not writers
        return any(has_time(e, now_s, self._max_queue_ms) for e in readers) and any(
            has_space(e, num_tokens, may_land=may_land) for e in writers
        )


def _makes_only(endpoint: Endpoint) -> bool:
    vectors = endpoint.software.vectors
    return vectors is not None and vectors.is_only


def has_time(endpoint: Endpoint, now_s: float, max_queue_ms: float) -> bool:
    """Return whether the worker's queue of prompts is short."""
    work = endpoint.work
    return work.num_prompts < MIN_PROMPTS or work.queue_ms(now_s) < max_queue_ms


def has_space(endpoint: Endpoint, num_tokens: int, *, may_land: bool = False) -> bool:
    """Return whether the decode worker's pool has room for a sequence of this number of tokens; or
    its host memory, until the pool has.
    """
    record, work = endpoint.record, endpoint.work
    if not work.num_held_tokens:
        return True
    num_blocks = KV_SHARE * record.num_blocks + may_land * record.num_landing_blocks
    return work.num_held_tokens + num_tokens <= num_blocks * record.block_size
