"""A peer that failed rests, longer each time, and is itself again after one success."""

from __future__ import annotations

from shared.identity import WorkerId
from shared.worker.reuse.breaker import FIRST_PAUSE_S, MAX_PAUSE_S, PeerBreaker

PEER, OTHER = WorkerId("peer", "1"), WorkerId("other", "1")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def pause_of(breaker: PeerBreaker, clock: Clock) -> float:
    """How long the peer is left alone from now on."""
    began_s = clock.now_s
    while not breaker.allows(PEER):
        clock.now_s += 0.5
    return clock.now_s - began_s


def test_each_failure_doubles_the_pause_up_to_a_minute() -> None:
    clock = Clock()
    breaker = PeerBreaker(clock=clock)
    pauses = []
    for _ in range(10):
        breaker.failed(PEER)
        pauses.append(pause_of(breaker, clock))
    assert pauses[:4] == [FIRST_PAUSE_S, 2.0, 4.0, 8.0]
    assert pauses[-1] == MAX_PAUSE_S


def test_requests_that_failed_together_count_once() -> None:
    clock = Clock()
    breaker = PeerBreaker(clock=clock)
    for _ in range(50):
        breaker.failed(PEER)
    assert pause_of(breaker, clock) == FIRST_PAUSE_S


def test_a_success_forgives() -> None:
    clock = Clock()
    breaker = PeerBreaker(clock=clock)
    for _ in range(5):
        breaker.failed(PEER)
        pause_of(breaker, clock)
    breaker.succeeded(PEER)
    breaker.failed(PEER)
    assert pause_of(breaker, clock) == FIRST_PAUSE_S


def test_others_and_other_lives_are_not_blamed() -> None:
    breaker = PeerBreaker(clock=Clock())
    breaker.failed(PEER)
    assert not breaker.allows(PEER)
    assert breaker.allows(OTHER)
    assert breaker.allows(WorkerId(PEER.name, "2"))


def test_peers_that_never_come_back_are_forgotten() -> None:
    clock = Clock()
    breaker = PeerBreaker(clock=clock)
    for i in range(1000):
        breaker.failed(WorkerId("peer", str(i)))
        clock.now_s += 10
    assert len(breaker._records) < 20
