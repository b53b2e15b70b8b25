"""Whether workers have room for another prompt, or the prompt should wait in the router."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Left:
    """What workers have room for. With no prompt or no tokens, for nothing."""

    #: Prompts that may be sent before one is computed; infinite: any number.
    num_prompts: float
    #: The longest prompt's tokens.
    num_tokens: float


UNBOUNDED = Left(math.inf, math.inf)


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
        readers, writers = self._workers()
        if not readers and not writers:
            return True
        now_s = self._book.clock()
        return any(has_time(e, now_s, self._max_queue_ms) for e in readers) and (
            not writers or num_tokens <= self._most_space(readers, writers)
        )

    def left(self) -> Left:
        """Return the room: a call with a number of tokens is true if it is within."""
        readers, writers = self._workers()
        if not readers and not writers:
            return UNBOUNDED
        now_s = self._book.clock()
        return Left(
            sum(
                max(1, MIN_PROMPTS - e.work.num_prompts)
                for e in set(readers)
                if has_time(e, now_s, self._max_queue_ms)
            ),
            self._most_space(readers, writers),
        )

    def _most_space(self, readers: Sequence[Endpoint], writers: Sequence[Endpoint]) -> float:
        may_land = self._mode is PlacementMode.DISAGGREGATED and readers is not writers
        return max((_space(e, may_land=may_land) for e in writers), default=math.inf)

    def _workers(self) -> tuple[Sequence[Endpoint], Sequence[Endpoint]]:
        """Return the workers that may compute prompts, and those that may write answers.

        Both are empty if nothing is known to be full.
        """
        able = [e for e in self._endpoints(Role.DECODE) if e.usable]
        writers = able
        if self._mode is PlacementMode.DISAGGREGATED:
            writers = preferring(able, Role.DECODE) or able
        if not writers:
            # Let the request in: routing reports what is missing, and waiting here does not help.
            # Workers that make vectors alone have no decode workers beside them.
            return [e for e in self._endpoints(Role.PREFILL) if e.usable and _makes_only(e)], ()
        usable = [e for e in self._endpoints(Role.PREFILL) if e.usable]
        if self._mode is PlacementMode.ELASTIC:
            return [*usable, *writers], writers
        if self._mode is PlacementMode.AGGREGATED:
            return writers, writers
        return preferring(usable, Role.PREFILL) or writers, writers


def _makes_only(endpoint: Endpoint) -> bool:
    vectors = endpoint.software.vectors
    return vectors is not None and vectors.is_only


def has_time(endpoint: Endpoint, now_s: float, max_queue_ms: float) -> bool:
    """Return whether the worker's queue of prompts is short."""
    work = endpoint.work
    return work.num_prompts < MIN_PROMPTS or work.queue_ms(now_s) < max_queue_ms


def has_space(endpoint: Endpoint, num_tokens: int) -> bool:
    """Return whether the decode worker's pool has room for a sequence of this number of tokens."""
    return num_tokens <= _space(endpoint, may_land=False)


def _space(endpoint: Endpoint, *, may_land: bool) -> float:
    """Return the tokens that the pool has room for, with host memory until the pool has if so."""
    record, work = endpoint.record, endpoint.work
    if not work.num_held_tokens:
        return math.inf
    num_blocks = KV_SHARE * record.num_blocks + may_land * record.num_landing_blocks
    return num_blocks * record.block_size - work.num_held_tokens
