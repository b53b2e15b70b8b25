"""Suffix decoding follows what followed most often, here or in earlier answers."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.sequence.sequence import Status
from shared.engine.settings.speculation import SpeculationConfig
from shared.engine.speculation.base import DraftWish
from shared.engine.speculation.past_answers import PastAnswers
from shared.engine.speculation.suffix import SuffixProposer
from shared.engine.speculation.suffix_automaton import ROOT
from tests.unit.engine.speculation.settings import sequence

if TYPE_CHECKING:
    from shared.engine.sequence.sequence import Sequence


def make(**fields: Any) -> SuffixProposer:
    config = SpeculationConfig(method="suffix", **fields)
    return SuffixProposer(SimpleNamespace(config=config))  # type: ignore[arg-type]  # all it asks for


def guess(proposer: SuffixProposer, seq: Sequence, num: int = 8) -> list[int]:
    return list(proposer.propose([DraftWish(seq, num)])[0].token_ids)


def test_the_longest_context_decides_how_much_is_guessed() -> None:
    proposer = make()
    assert guess(proposer, sequence([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3])) == [4, 5, 6]
    assert guess(proposer, sequence([1, 2, 3])) == []
    assert guess(make(suffix_decoding_max_spec_factor=2.0), sequence([1, 2, 3, 4, 1, 2]), 3) == [
        3,
        4,
        1,
    ]


def test_a_token_that_was_there_before_is_expected_to_lead_on() -> None:
    proposer = make()
    assert not proposer.may_guess(sequence([1, 2, 3]))
    assert proposer.may_guess(sequence([1, 2, 3, 1]))
    first = sequence([1], range(20, 40))
    guess(proposer, first)
    first.status = Status.ENDED
    proposer.forget(first)
    guess(proposer, sequence([2]))
    assert proposer.may_guess(sequence([2], [25]))
    assert not proposer.may_guess(sequence([2], [19]))


def test_the_most_frequent_continuation_wins() -> None:
    assert guess(make(), sequence([1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 4, 7, 1, 2]), 1) == [4]


def test_an_unlikely_token_ends_the_draft() -> None:
    prompt = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3, 7, 1, 2, 3]
    assert guess(make(suffix_decoding_min_token_prob=0.5), sequence([*prompt, 8, 1, 2])) == [3]
    assert len(guess(make(suffix_decoding_min_token_prob=0.2), sequence([*prompt, 8, 1, 2]))) == 2


def test_what_was_answered_before_is_known_to_later_requests() -> None:
    proposer = make()
    first = sequence([1], range(20, 40))
    guess(proposer, first)
    first.status = Status.ENDED
    proposer.forget(first)
    assert guess(proposer, sequence([2], [25, 26, 27])) == [28, 29, 30]
    # And a request that goes on is matched token by token.
    seq = sequence([3], [30])
    assert guess(proposer, seq) == [31]
    seq.token_ids.extend([31, 32])
    assert guess(proposer, seq) == [33, 34, 35]


def test_a_preempted_sequence_is_no_answer() -> None:
    proposer = make()
    first = sequence([1], range(20, 40))
    guess(proposer, first)
    first.status = Status.WAITING
    proposer.forget(first)
    assert guess(proposer, sequence([2], [25, 26, 27])) == []


def test_a_long_context_is_taken_in_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.engine.speculation.suffix._INDEXED_PER_STEP", 8)
    proposer, seq = make(), sequence([1, 2, 3, 4, 5] * 4)
    assert [bool(guess(proposer, seq)) for _ in range(4)] == [False, False, True, True]


def test_memory_of_a_sequence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older half is forgotten; what is left is still matched."""
    monkeypatch.setattr("shared.engine.speculation.suffix._MOST_INDEXED", 64)
    proposer, seq = make(), sequence([1, 2, 3])
    for _ in range(100):
        seq.token_ids.extend([5, 6, 7, 8])
        guess(proposer, seq)
        assert len(proposer._memories[seq].automaton) <= 2 * 64 + 8
    assert guess(proposer, seq, 4) == [5, 6, 7, 8]


def test_old_answers_make_room_for_new_ones() -> None:
    past = PastAnswers(max_requests=4, depth=4)
    for i in range(7):
        past.add(array("q", [i, i, 100 + i]))
        past.take_in()
    found = [any(a.step(ROOT, 100 + i) is not None for a in past.automata) for i in range(7)]
    # Between half and all of the last four.
    assert found == [False] * 4 + [True] * 3
    assert len(past.automata) == 2


@pytest.mark.parametrize("max_requests", [0, 10])
def test_answers_are_taken_in_bit_by_bit(max_requests: int) -> None:
    past = PastAnswers(max_requests=max_requests, depth=4)
    past.add(array("q", range(10)))
    past.take_in(4)
    if not max_requests:
        assert past.automata == []
        return
    assert past.automata[0].step(ROOT, 3) is not None
    assert past.automata[0].step(ROOT, 4) is None
    past.take_in(100)
    assert past.automata[0].step(ROOT, 9) is not None
