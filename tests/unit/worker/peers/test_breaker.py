"""A peer that failed rests, longer each time, is tried by one, and is itself after a success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from shared.identity import WorkerId
from shared.worker.peers.breaker import (
    FIRST_PAUSE_S,
    JITTER,
    MAX_PAUSE_S,
    BreakerMetrics,
    PeerBreaker,
)

PEER, OTHER = WorkerId("peer", "1"), WorkerId("other", "1")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def breaker_of(clock: Clock, *, threshold: int = 1, jitter: float = 0.0) -> PeerBreaker:
    return PeerBreaker(threshold=threshold, clock=clock, jitter=lambda: jitter)


def pause_of(breaker: PeerBreaker, clock: Clock) -> float:
    """How long the peer is left alone from now on."""
    began_s = clock.now_s
    while not breaker.allows(PEER):
        clock.now_s += 0.25
    return clock.now_s - began_s


def test_each_failure_doubles_the_pause_up_to_a_minute() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    pauses = []
    for _ in range(10):
        breaker.failed(PEER)
        pauses.append(pause_of(breaker, clock))
    assert pauses[:4] == [FIRST_PAUSE_S, 2.0, 4.0, 8.0]
    assert pauses[-1] == MAX_PAUSE_S


def test_pauses_are_spread() -> None:
    clock = Clock()
    breaker = breaker_of(clock, jitter=JITTER)
    breaker.failed(PEER)
    assert pause_of(breaker, clock) == FIRST_PAUSE_S * (1 + JITTER)


def test_requests_that_failed_together_count_once() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    for _ in range(50):
        breaker.failed(PEER)
    assert pause_of(breaker, clock) == FIRST_PAUSE_S


def test_a_few_failures_in_a_row_are_forgiven_others_are_not() -> None:
    breaker = breaker_of(Clock(), threshold=3)
    for _ in range(5):
        breaker.failed(PEER)
        breaker.failed(PEER)
        assert breaker.allows(PEER)
        breaker.succeeded(PEER)
    for _ in range(3):
        assert breaker.allows(PEER)
        breaker.failed(PEER)
    assert not breaker.allows(PEER)


def test_one_sure_failure_is_enough() -> None:
    breaker = breaker_of(Clock(), threshold=3)
    breaker.failed(PEER, surely=True)
    assert not breaker.allows(PEER)


def test_after_the_pause_one_request_tries_it() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    breaker.failed(PEER)
    assert not breaker.begin(PEER)
    clock.now_s += FIRST_PAUSE_S
    assert breaker.begin(PEER)
    assert not breaker.begin(PEER)
    breaker.gave_up(PEER)
    assert breaker.begin(PEER)
    breaker.succeeded(PEER)
    assert breaker.begin(PEER)
    assert breaker.begin(PEER)


def test_a_success_forgives() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    for _ in range(5):
        breaker.failed(PEER)
        pause_of(breaker, clock)
    breaker.succeeded(PEER)
    breaker.failed(PEER)
    assert pause_of(breaker, clock) == FIRST_PAUSE_S


def test_others_and_other_lives_are_not_blamed() -> None:
    breaker = breaker_of(Clock())
    breaker.failed(PEER)
    assert not breaker.allows(PEER)
    assert breaker.allows(OTHER)
    assert breaker.allows(WorkerId(PEER.name, "2"))


def test_peers_that_never_come_back_are_forgotten() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    for i in range(1000):
        breaker.failed(WorkerId("peer", str(i)))
        clock.now_s += 10
    assert len(breaker._records) < 20


def test_what_happens_is_counted() -> None:
    registry, clock = CollectorRegistry(), Clock()
    observe = BreakerMetrics(registry).observe("prefill")
    breaker = PeerBreaker(clock=clock, jitter=lambda: 0.0, observe=observe)
    breaker.failed(PEER)
    breaker.begin(PEER)
    assert registry.get_sample_value("baton_peers_left_alone", {"purpose": "prefill"}) == 1
    clock.now_s += FIRST_PAUSE_S
    breaker.begin(PEER)
    breaker.succeeded(PEER)
    assert registry.get_sample_value("baton_peers_left_alone", {"purpose": "prefill"}) == 0
    for event in ("opened", "skipped", "probed", "closed"):
        labels = {"purpose": "prefill", "event": event}
        assert registry.get_sample_value("baton_peer_breaker_events_total", labels) == 1


@given(
    threshold=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["ok", "bad", "sure", "lost interest"]), st.floats(0, 100)),
        max_size=60,
    ),
)
def test_it_never_locks_a_peer_out_for_ever(threshold: int, steps: list[tuple[str, float]]) -> None:
    """Whatever happened, it may be tried after the longest pause, and by one at a time."""
    clock = Clock()
    breaker = breaker_of(clock, threshold=threshold, jitter=JITTER)
    for outcome, wait_s in steps:
        clock.now_s += wait_s
        if not breaker.begin(PEER):
            continue
        if outcome == "ok":
            breaker.succeeded(PEER)
        elif outcome != "lost interest":
            breaker.failed(PEER, surely=outcome == "sure")
        breaker.gave_up(PEER)
        if outcome == "sure":
            assert not breaker.allows(PEER)
    clock.now_s += MAX_PAUSE_S * (1 + JITTER)
    assert breaker.begin(PEER)
