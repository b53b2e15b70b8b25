"""Guessing is turned off where it loses, whatever it costs, and stays on where it wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.speculation.pace import DraftPace
from shared.engine.speculation.switch import SpeculationSwitch

PLAIN_S = 0.01


def run(
    switch: SpeculationSwitch, num_steps: int, *, row_cost: float, accepted: int, num_seqs: int = 1
) -> tuple[float, int, int]:
    """Time, tokens and steps with guesses. A draft of 4; each further row costs its share."""
    time_s, num_tokens, num_tried = 0.0, 0, 0
    for _ in range(num_steps):
        if switch.wants_drafts(num_seqs):
            took_s = PLAIN_S * (1 + 4 * row_cost)
            new = (1 + accepted) * num_seqs
            switch.note_tried(
                num_seqs, num_rows=5 * num_seqs, num_tokens=new, took_s=took_s, guessing_s=0.0001
            )
            num_tried += 1
        else:
            took_s, new = PLAIN_S, num_seqs
            switch.note_plain(num_seqs, took_s)
        time_s += took_s
        num_tokens += new
    return time_s, num_tokens, num_tried


@given(st.floats(0.05, 1.0), st.sampled_from([1, 3, 16]))
def test_where_nothing_is_accepted_little_is_lost(row_cost: float, num_seqs: int) -> None:
    time_s, num_tokens, num_tried = run(
        SpeculationSwitch(), 4000, row_cost=row_cost, accepted=0, num_seqs=num_seqs
    )
    assert 0 < num_tried <= 8 * 8
    assert num_tokens / num_seqs * PLAIN_S / time_s > 1 - 0.017 * 4 * row_cost


def test_where_it_wins_it_stays_on() -> None:
    switch = SpeculationSwitch()
    time_s, num_tokens, num_tried = run(switch, 1000, row_cost=0.1, accepted=3)
    assert num_tried > 970
    assert num_tokens * PLAIN_S / time_s > 2.7
    gain = switch.gain(1)
    assert gain is not None
    assert gain == pytest.approx(4 / 1.4, rel=0.02)


def test_it_comes_back_when_things_change() -> None:
    """And each range of batch sizes is judged by itself."""
    switch = SpeculationSwitch()
    run(switch, 300, row_cost=0.3, accepted=0)
    assert not switch.wants_drafts(1)
    assert run(switch, 20, row_cost=0.3, accepted=4, num_seqs=4)[2] > 10
    assert run(switch, 1000, row_cost=0.3, accepted=4)[2] > 500


def test_one_slow_step_turns_nothing_off() -> None:
    switch = SpeculationSwitch()
    run(switch, 30, row_cost=0.1, accepted=3)
    switch.note_tried(1, num_rows=5, num_tokens=4, took_s=100 * PLAIN_S, guessing_s=0.0)
    switch.note_plain(1, 100 * PLAIN_S)
    assert run(switch, 50, row_cost=0.1, accepted=3)[2] >= 49


def look_in_vain(switch: SpeculationSwitch, num_steps: int, *, cost: float) -> tuple[float, int]:
    """Time and steps that looked, where each look makes a step longer by this share of it."""
    time_s, num_looks = 0.0, 0
    for i in range(num_steps):
        if switch.wants_drafts(1):
            took_s = PLAIN_S * (1 + cost + (0.2 if i % 2 else -0.2))
            switch.note_tried(1, num_rows=1, num_tokens=1, took_s=took_s, guessing_s=0.0)
            num_looks += 1
        else:
            took_s = PLAIN_S
            switch.note_plain(1, took_s)
        time_s += took_s
    return time_s, num_looks


def test_looking_in_vain_at_no_cost_goes_on() -> None:
    """Steps differ by chance alone."""
    _, num_looks = look_in_vain(SpeculationSwitch(), 1000, cost=0.0)
    assert num_looks > 960


def test_looking_in_vain_costs_little() -> None:
    """Though it is done again and again: what comes next may be easy to guess."""
    time_s, num_looks = look_in_vain(SpeculationSwitch(), 2000, cost=0.08)
    assert 200 < num_looks < 800
    assert 2000 * PLAIN_S / time_s > 0.97


def test_after_looking_in_vain_for_long_it_soon_finds_something() -> None:
    switch = SpeculationSwitch()
    look_in_vain(switch, 2000, cost=0.08)
    assert run(switch, 100, row_cost=0.1, accepted=3)[2] >= 36


@given(st.lists(st.integers(0, 8), max_size=60), st.integers(1, 8))
def test_the_pace_stays_within_its_bounds(hits: list[int], most: int) -> None:
    pace = DraftPace()
    for hit in hits:
        num = pace.next_num(most)
        assert 0 <= num <= most
        if num:
            pace.note(num_drafted=num, num_accepted=min(hit, num))


def test_who_begins_where_little_is_right_begins_with_little() -> None:
    """And is soon up to speed where that was wrong."""
    pace = DraftPace(0.0)
    asked = []
    for _ in range(8):
        asked.append(pace.next_num(16))
        pace.note(num_drafted=asked[-1], num_accepted=asked[-1])
    assert asked[0] == 1
    assert asked[-1] == 16


def test_the_pace_follows_acceptance() -> None:
    pace = DraftPace()
    assert pace.next_num(16) == 7
    for _ in range(20):
        num = pace.next_num(16)
        pace.note(num_drafted=num, num_accepted=num)
    assert pace.next_num(16) == 16
    for _ in range(20):
        num = pace.next_num(16)
        pace.note(num_drafted=num, num_accepted=min(2, num))
    assert 3 <= pace.next_num(16) <= 5
    tried = 0
    for _ in range(1000):
        num = pace.next_num(16)
        if num:
            tried += 1
            pace.note(num_drafted=num, num_accepted=0)
    assert 15 < tried < 35  # it rests ever longer
    while not pace.rests:
        pace.note(num_drafted=pace.next_num(16), num_accepted=0)
    for _ in range(64):
        pace.pass_step()
    assert pace.next_num(16) > 0
