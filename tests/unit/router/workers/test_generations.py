"""Whose weights a generation has: the same for all who read the same registry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.router.workers.generations import Generations
from shared.directory.base import WEIGHT_PATH, WEIGHT_VERSION, WorkerRecord
from shared.identity import Role, WorkerId

HOLD_S = 60.0
X, Y = "aa" * 32, "bb" * 32


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def record(
    name: str, identity: str, *, joined_ms: int, first: str = "", generation: int = 0
) -> WorkerRecord:
    return WorkerRecord(
        worker=WorkerId(name, "1"),
        role=Role.DECODE,
        address=f"{name}:1",
        model="m",
        namespace="cc" * 32,
        block_size=16,
        num_blocks=8,
        max_model_len=64,
        identity=identity,
        generation=generation,
        generation_identity=first,
        joined_ms=joined_ms,
    )


A = record("a", X, joined_ms=1)
#: It joined when A was there.
B = record("b", Y, joined_ms=2, first=X)
#: A, started again: it learned from B's record what the generation is.
A_AGAIN = record("a", X, joined_ms=3, first=X)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def generations(clock: Clock) -> Generations:
    return Generations(hold_s=HOLD_S, clock=clock)


def test_the_first_worker_decides_in_whatever_order_they_are_seen(
    generations: Generations,
) -> None:
    for present in ([A, B], [B, A]):
        assert generations.refusal(A, present) == ""
        refusal = generations.refusal(B, present)
        assert "not those of generation 0" in refusal
        assert "identity bbbbbbbbbbbb, the generation aaaaaaaaaaaa" in refusal
        assert "--model-generation" in refusal


def test_two_that_knew_nothing_of_each_other_are_told_apart_by_when_they_joined(
    generations: Generations,
) -> None:
    late = record("b", Y, joined_ms=2, first=Y)
    assert generations.refusal(late, [late, A])
    assert not generations.refusal(A, [late, A])


def test_generations_are_judged_apart(generations: Generations) -> None:
    newer = record("b", Y, joined_ms=2, generation=1)
    assert not generations.refusal(newer, [A, newer])
    assert not generations.refusal(A, [A, newer])


def test_a_lost_identity_is_kept_for_a_while(generations: Generations, clock: Clock) -> None:
    generations.joined(A)
    generations.left(A, in_order=False)
    assert generations.refusal(B, [B])
    clock.now_s += HOLD_S - 1
    assert generations.refusal(B, [B])
    clock.now_s += 2
    assert not generations.refusal(B, [B])


def test_who_left_in_order_makes_room_at_once(generations: Generations) -> None:
    generations.joined(A)
    generations.left(A, in_order=True)
    assert not generations.refusal(B, [B])


def test_one_that_was_lost_counts_though_another_left_in_order(
    generations: Generations, clock: Clock
) -> None:
    for in_order in (False, True):
        generations.joined(A)
        generations.left(A, in_order=in_order)
    assert generations.refusal(B, [B])


def test_a_router_that_has_just_started_waits_for_the_first(
    generations: Generations, clock: Clock
) -> None:
    assert generations.refusal(B, [B])
    clock.now_s += HOLD_S + 1
    assert not generations.refusal(B, [B])


def test_the_first_that_comes_back_is_the_first_again(
    generations: Generations, clock: Clock
) -> None:
    """Though the other one has been there for longer, and for whichever router."""
    clock.now_s += HOLD_S + 1
    assert not generations.refusal(B, [B])
    assert generations.refusal(B, [B, A_AGAIN])
    assert not generations.refusal(A_AGAIN, [B, A_AGAIN])


def test_older_workers_are_known_by_their_block_hashes(generations: Generations) -> None:
    old = record("old", "", joined_ms=0)
    alike = record("alike", "", joined_ms=0)
    assert not generations.refusal(alike, [old, alike])
    assert generations.refusal(A, [old, A])


def test_weights_from_before_an_update_are_not_used(clock: Clock) -> None:
    generations = Generations(hold_s=HOLD_S, clock=clock)
    old = record("a", X, joined_ms=1)
    labels = {WEIGHT_VERSION: "v2", WEIGHT_PATH: "/weights/v2"}
    new = replace(record("b", Y, joined_ms=2, generation=1), labels=labels)
    generations.joined(old)
    assert generations.refusal(old, [old]) == ""
    generations.joined(new)
    assert "was updated to version 'v2'" in generations.refusal(old, [old, new])
    assert generations.refusal(new, [old, new]) == ""
    generations.left(new, in_order=False)
    assert "was updated" in generations.refusal(old, [old])
    assert generations.updated_to == new
