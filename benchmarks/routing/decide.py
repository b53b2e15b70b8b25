"""What one decision costs the router: microseconds of the real scheduler, hashing apart."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from services.router.__main__ import settle_memory
from services.router.routing.base import RoutingRequest
from services.router.routing.chooser import WorkerChooser
from services.router.routing.policies.find import find_policy
from services.router.workers.endpoint import Endpoint
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.directory.index import BlockIndex
from shared.identity import Role, WorkerId
from shared.kv.identity import KVIdentity
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.routing.base import Route
    from services.router.routing.book import Booking

BLOCK_SIZE = 16
NAMESPACE = bytes(32)
#: Requests in flight on every worker, with prompts of their own.
NUM_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTimes:
    """Microseconds."""

    num_workers: int
    num_tokens: int
    hash_us: float
    route_p50_us: float
    route_p99_us: float
    #: Writing the request into the book, and taking it out.
    book_p50_us: float


def measure(num_workers: int, num_tokens: int, *, num_decisions: int) -> DecisionTimes:
    """`num_workers` prefill workers and one decode worker; each holds a beginning of the prompt."""
    rng = random.Random(1)
    prompt = [rng.randrange(100_000) for _ in range(num_tokens)]
    identity = KVIdentity(NAMESPACE)
    hash_us = min(_timed_us(lambda: identity.hash_blocks(prompt, BLOCK_SIZE)) for _ in range(5))
    hashes = identity.hash_blocks(prompt, BLOCK_SIZE)
    scheduler = _scheduler(num_workers, hashes)
    open_bookings = _fill_book(scheduler, num_workers, num_tokens, rng)
    request = RoutingRequest(num_prompt_tokens=num_tokens, max_tokens=100, block_hashes=hashes)
    route_us, book_us = [], []
    is_frozen, thresholds = gc.get_freeze_count() > 0, gc.get_threshold()
    settle_memory()
    for _ in range(num_decisions):
        route_us.append(_timed_us(lambda: scheduler.route(request)))
        route = scheduler.route(request)
        book_us.append(_timed_us(partial(_book, scheduler, route, request)))
    if not is_frozen:  # what our caller has frozen stays so
        gc.unfreeze()
    gc.set_threshold(*thresholds)
    for booking in open_bookings:
        booking.release()
    route_us.sort()
    return DecisionTimes(
        num_workers=num_workers,
        num_tokens=num_tokens,
        hash_us=hash_us,
        route_p50_us=route_us[len(route_us) // 2],
        route_p99_us=route_us[int(0.99 * len(route_us))],
        book_p50_us=sorted(book_us)[len(book_us) // 2],
    )


def _scheduler(num_workers: int, hashes: Sequence[bytes]) -> WorkerChooser:
    index = BlockIndex()
    endpoints: dict[Role, list[Endpoint]] = {Role.PREFILL: [], Role.DECODE: []}
    for number in range(num_workers + 1):
        role = Role.PREFILL if number else Role.DECODE
        record = WorkerRecord(
            worker=WorkerId(f"worker-{number}", "1"),
            role=role,
            address=f"worker-{number}:1",
            model="m",
            namespace=NAMESPACE.hex(),
            block_size=BLOCK_SIZE,
            num_blocks=100_000,
            max_model_len=1_000_000,
        )
        held = hashes[: len(hashes) * number // num_workers]
        index.replace(record.worker, 1, {BlockTier.DEVICE: held})
        endpoints[role].append(Endpoint(record, WorkerLoad(), ready=True))
    return WorkerChooser(
        endpoints.__getitem__, policy=find_policy("cost", random.Random(1)), prefixes=index
    )


def _fill_book(
    scheduler: WorkerChooser, num_workers: int, num_tokens: int, rng: random.Random
) -> list[Booking]:
    bookings = []
    for _ in range(NUM_IN_FLIGHT * num_workers):
        hashes = [rng.randbytes(32) for _ in range(num_tokens // BLOCK_SIZE)]
        request = RoutingRequest(num_prompt_tokens=num_tokens, max_tokens=9, block_hashes=hashes)
        route = scheduler.route(request)
        bookings.append(
            scheduler.book.begin(route, num_prompt_tokens=num_tokens, block_hashes=hashes)
        )
    return bookings


def _book(scheduler: WorkerChooser, route: Route, request: RoutingRequest) -> None:
    booking = scheduler.book.begin(
        route, num_prompt_tokens=request.num_prompt_tokens, block_hashes=request.block_hashes
    )
    booking.add_tokens(1)
    booking.release()


def _timed_us(work: Callable[[], object]) -> float:
    started_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - started_ns) / 1000
