"""What the model of ranks says where the answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ranks.model import (
    GLOO,
    HERE,
    MEASURED,
    MEDIUM,
    SEVEN,
    SHARED_MEMORY,
    SOCKET,
    Link,
    divided_step_s,
    here_speed,
    interleaved_step_s,
    stage_speed,
    step_s,
)

FREE = Link(name="free", sum_s=0.0, sum_rate=1e30)


def test_it_agrees_with_what_was_measured_here() -> None:
    for shape, speeds in MEASURED:
        for num, measured in speeds.items():
            speed = here_speed(shape, SHARED_MEMORY, num_sequences=num, context=512)
            assert speed == pytest.approx(measured, rel=0.06)


def test_steps_take_what_they_took_here() -> None:
    """The model is fitted to steps with 1 and 16 sequences: that with 4 is a prediction."""
    both = replace(HERE, bytes_per_s=2 * HERE.bytes_per_s, flops=2 * HERE.flops)
    for num, measured_ms in ((1, 30.1), (4, 52.3), (16, 135.2)):
        computed_s = step_s(MEDIUM, both, num_sequences=num, context=512)
        assert computed_s * 1e3 == pytest.approx(measured_ms, rel=0.1)


def test_free_sums_divide_the_step_and_odd_heads_do_not_divide_it_evenly() -> None:
    whole_s = step_s(SEVEN, SOCKET, num_sequences=4, context=100)
    for num_ranks, share in ((1, 1), (2, 1 / 2), (3, 11 / 32)):
        divided_s = divided_step_s(
            SEVEN, SOCKET, FREE, num_ranks=num_ranks, num_sequences=4, context=100
        )
        assert divided_s == pytest.approx(share * whole_s)


def test_slow_sums_make_ranks_slower_than_one_process() -> None:
    assert here_speed(MEDIUM, GLOO, num_sequences=1, context=512) < 0.5


def test_memory_that_takes_turns_is_as_good_as_ranks_over_a_fast_link_alone() -> None:
    whole_s = step_s(SEVEN, SOCKET, num_sequences=1, context=1)
    fast_s = interleaved_step_s(
        SEVEN, SOCKET, link_bytes_per_s=SOCKET.bytes_per_s, num_sequences=1, context=1
    )
    slow_s = interleaved_step_s(
        SEVEN, SOCKET, link_bytes_per_s=SOCKET.bytes_per_s / 8, num_sequences=1, context=1
    )
    assert fast_s == pytest.approx(whole_s / 2)
    assert slow_s > 1.9 * whole_s


def test_stages_lose_the_turns_in_which_they_fill() -> None:
    speed = stage_speed(num_stages=2, num_chunks=8, chunk_s=1.0, message_s=0.0)
    assert speed == pytest.approx(2 * 8 / 9)
    assert stage_speed(num_stages=2, num_chunks=8, chunk_s=1.0, message_s=0.1) < speed
