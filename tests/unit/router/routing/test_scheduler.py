from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from services.router.endpoint import Booking, Endpoint
from services.router.routing.base import RoutingRequest
from services.router.routing.picker import LeastCost
from services.router.routing.scheduler import Scheduler
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.errors import NoWorkerError
from shared.identity import Role, WorkerId

REQUEST = RoutingRequest(num_prompt_tokens=10, max_tokens=10)


def _endpoint(name: str, role: Role = Role.DECODE, **changes: Any) -> Endpoint:
    facts: dict[str, Any] = {
        "address": f"{name}:1",
        "model": "tiny",
        "namespace": "ab",
        "block_size": 16,
        "num_blocks": 8,
        "max_model_len": 100,
    }
    record = WorkerRecord(worker=WorkerId(name, "1"), role=role, **(facts | changes))
    return Endpoint(record, WorkerLoad(), ready=True)


def _scheduler(*endpoints: Endpoint, **kwargs: Any) -> Scheduler:
    def of_role(role: Role) -> list[Endpoint]:
        return [e for e in endpoints if e.record.role is role]

    return Scheduler(of_role, picker=LeastCost(random.Random(3)), **kwargs)


def test_the_least_loaded_decode_worker_is_chosen() -> None:
    a, b, c = (_endpoint(name) for name in "abc")
    a.num_requests, b.num_requests, c.num_requests = 3, 1, 2
    assert _scheduler(a, b, c).route(REQUEST).decode is b
    b.num_waiting_tokens = 10_000
    assert _scheduler(a, b, c).route(REQUEST).decode is c
    c.num_held_tokens = 1_000_000
    assert _scheduler(a, b, c).route(REQUEST).decode is a


def test_equals_are_chosen_equally() -> None:
    scheduler = _scheduler(*(_endpoint(name) for name in "abc"))
    counts = Counter(scheduler.route(REQUEST).decode.name for _ in range(600))
    assert all(150 < count < 250 for count in counts.values())


def test_prefill_workers_are_ordered_by_what_waits_there() -> None:
    prefill = [_endpoint(name, Role.PREFILL) for name in "pqrs"]
    for endpoint, tokens in zip(prefill, (300, 100, 400, 200), strict=True):
        endpoint.num_waiting_tokens = tokens
    route = _scheduler(_endpoint("d"), *prefill).route(REQUEST)
    assert [e.name for e in route.prefill] == ["q", "s", "p"]


@pytest.mark.parametrize(
    "other", [{"namespace": "cd"}, {"block_size": 32}, {"model": "big"}, {"max_model_len": 19}]
)
def test_prefill_workers_with_other_blocks_are_left_out(other: dict[str, Any]) -> None:
    stranger = _endpoint("p", Role.PREFILL, **other)
    assert _scheduler(_endpoint("d"), stranger).route(REQUEST).prefill == ()


def test_who_cannot_serve_is_left_out_and_why() -> None:
    draining, starting, small, failed = (_endpoint(name) for name in "abcd")
    draining.load = WorkerLoad(draining=True)
    starting.ready = False
    small = _endpoint("c", max_model_len=19)
    request = RoutingRequest(
        num_prompt_tokens=10, max_tokens=10, excluded=frozenset({failed.record.worker})
    )
    with pytest.raises(NoWorkerError) as caught:
        _scheduler(draining, starting, small, failed).route(request)
    message = str(caught.value)
    for part in ("a is draining", "b is not ready", "c is too small", "d is failed before"):
        assert part.replace("is failed", "is failed") in message
    good = _endpoint("e")
    assert _scheduler(draining, starting, small, failed, good).route(request).decode is good


def test_nobody_at_all_is_said_plainly() -> None:
    with pytest.raises(NoWorkerError, match="no decode worker is registered"):
        _scheduler().route(REQUEST)


def test_a_booking_moves_from_prefill_to_decode_and_ends_once() -> None:
    decode, prefill = _endpoint("d"), _endpoint("p", Role.PREFILL)
    booking = Booking(decode, prefill, 10)
    assert (decode.num_requests, decode.num_held_tokens, decode.num_waiting_tokens) == (1, 10, 0)
    assert (prefill.num_requests, prefill.num_waiting_tokens) == (1, 10)
    booking.add_tokens(1)
    booking.add_tokens(2)
    assert (prefill.num_requests, prefill.num_waiting_tokens) == (0, 0)
    assert decode.num_held_tokens == 13
    booking.release()
    booking.release()
    booking.add_tokens(5)
    assert (decode.num_requests, decode.num_held_tokens) == (0, 0)


def test_without_prefill_the_decode_worker_computes() -> None:
    decode = _endpoint("d")
    booking = Booking(decode, None, 10)
    assert decode.num_waiting_tokens == 10
    booking.release()
    assert (decode.num_requests, decode.num_waiting_tokens, decode.num_held_tokens) == (0, 0, 0)
