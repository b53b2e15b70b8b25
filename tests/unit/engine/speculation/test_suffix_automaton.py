"""Every substring is found, and counted, as a search through the sequences would."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from shared.engine.speculation.suffix_automaton import ROOT, SuffixAutomaton, SuffixWriter

if TYPE_CHECKING:
    from random import Random

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3)


def substrings(token_ids: list[int], longest: int) -> list[tuple[int, ...]]:
    return [
        tuple(token_ids[i : i + num])
        for i in range(len(token_ids))
        for num in range(1, longest + 1)
        if i + num <= len(token_ids)
    ]


def walk(automaton: SuffixAutomaton, token_ids: tuple[int, ...]) -> int | None:
    state: int | None = ROOT
    for token_id in token_ids:
        assert state is not None
        state = automaton.step(state, token_id)
    return state


@given(SEQUENCES, st.integers(2, 8), st.randoms())
def test_counts_are_those_of_a_search(
    sequences: list[list[int]], depth: int, random: Random
) -> None:
    """Whatever the order in which several sequences grow."""
    automaton = SuffixAutomaton()
    writers = [SuffixWriter(automaton, depth) for _ in sequences]
    turns = [i for i, token_ids in enumerate(sequences) for _ in token_ids]
    random.shuffle(turns)
    places = [0] * len(sequences)
    for i in turns:
        writers[i].append(sequences[i][places[i]])
        places[i] += 1
    expected = Counter(s for token_ids in sequences for s in substrings(token_ids, depth))
    for substring, count in expected.items():
        state = walk(automaton, substring)
        assert state is not None
        assert automaton.counts[state] == count
        following = {t: n for s, n in expected.items() if s[:-1] == substring for t in s[-1:]}
        if len(substring) < depth:
            ways = {token: automaton.counts[to] for token, to in automaton.ways(state)}
            assert ways == following
            assert automaton.num_ways(state) == len(following)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_the_longest_repeated_suffix_is_known(token_ids: list[int]) -> None:
    writer = SuffixWriter(SuffixAutomaton(), 4)
    for end, token_id in enumerate(token_ids, start=1):
        writer.append(token_id)
        so_far = token_ids[:end]
        longest = max(
            n
            for n in range(end)
            if n == 0 or any(so_far[i : i + n] == so_far[end - n :] for i in range(end - n))
        )
        assert writer.repeated[1] == longest


@given(SEQUENCES, st.lists(st.integers(0, 2), max_size=12), st.data())
def test_matching_finds_the_longest_suffix_that_occurs(
    sequences: list[list[int]], text: list[int], data: st.DataObject
) -> None:
    """Also when the automaton grows between two tokens of the text."""
    automaton = SuffixAutomaton()
    waiting = list(sequences)
    known: set[tuple[int, ...]] = {()}
    state, length = ROOT, 0
    for end, token_id in enumerate(text, start=1):
        if waiting and data.draw(st.booleans()):
            added = waiting.pop()
            writer = SuffixWriter(automaton, 4)
            for other in added:
                writer.append(other)
            known.update(substrings(added, len(added)))
        suffix_before = tuple(text[end - 1 - length : end - 1])
        state, length = automaton.find(state, length, token_id)
        candidates = [(*suffix_before[i:], token_id) for i in range(len(suffix_before) + 1)]
        assert length == max((len(c) for c in candidates if c in known), default=0)
        assert walk(automaton, tuple(text[end - length : end])) == automaton.settle(state, length)
