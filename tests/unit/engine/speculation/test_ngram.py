"""Prompt lookup finds what a search through the tokens finds, at a constant cost per token."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.settings.speculation import SpeculationConfig
from shared.engine.speculation.base import DraftWish
from shared.engine.speculation.ngram import NgramIndex, NgramProposer, follow
from tests.unit.engine.speculation.settings import sequence

if TYPE_CHECKING:
    import pytest

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def search(token_ids: list[int], shortest: int, longest: int) -> int | None:
    """The definition: the longest n-gram first, its earliest occurrence."""
    for num in range(longest, shortest - 1, -1):
        for end in range(num, len(token_ids)):
            if token_ids[end - num : end] == token_ids[len(token_ids) - num :]:
                return end
    return None


@given(TOKENS, st.integers(1, 3), st.integers(0, 3), st.data())
def test_the_index_finds_what_a_search_finds(
    token_ids: list[int], shortest: int, more: int, data: st.DataObject
) -> None:
    index, kept = NgramIndex(shortest, shortest + more), array("q", token_ids)
    end = 0
    while end < len(token_ids):
        end = data.draw(st.integers(end + 1, len(token_ids)))
        index.extend(kept, end)
        assert index.find() == search(token_ids[:end], shortest, shortest + more)


@given(TOKENS, st.integers(1, 3), st.integers(0, 3))
def test_what_is_not_expected_is_not_found(token_ids: list[int], shortest: int, more: int) -> None:
    """Whatever the next token is; and where it is expected, some token brings it."""
    index = NgramIndex(shortest, shortest + more)
    index.extend(array("q", token_ids), len(token_ids))
    found = [search([*token_ids, token], shortest, shortest + more) for token in range(4)]
    assert index.may_match == any(place is not None for place in found)


def test_a_loop_goes_on() -> None:
    token_ids = array("q", [9, 1, 2, 3, 1, 2, 3])
    assert follow(token_ids, 4, 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert follow(token_ids, 1, 2) == [1, 2]


def test_a_long_prompt_is_taken_in_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """And until then nothing is guessed, because the end is not known."""
    monkeypatch.setattr("shared.engine.speculation.ngram._INDEXED_PER_STEP", 10)
    config = SpeculationConfig(method="ngram", num_speculative_tokens=3)
    proposer = NgramProposer(SimpleNamespace(config=config))  # type: ignore[arg-type]  # all it asks for
    seq = sequence([1, 2, 3, 4] * 10)
    drafts = [list(proposer.propose([DraftWish(seq, 3)])[0].token_ids) for _ in range(5)]
    assert drafts == [[], [], [], [1, 2, 3], [1, 2, 3]]
    proposer.forget(seq)
    assert proposer.propose([DraftWish(seq, 3)])[0] is NO_DRAFT
