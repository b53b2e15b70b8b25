"""Suffix decoding: what followed the last tokens in the request itself and in past answers, weighed
by how often.

G. Oliaro et al., "SuffixDecoding: extreme speculative decoding for emerging AI applications"
(2024). The contexts are the suffixes of the tokens so far that have occurred before. From each one
the most frequent continuation is followed as long as the product of the frequencies stays over a
threshold; the draft is the continuation of which most tokens are expected to be accepted. So its
length follows from the statistics, not from a setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.sequence.draft import NO_DRAFT, Draft
from shared.engine.sequence.sequence import Status
from shared.engine.speculation.past_answers import PastAnswers
from shared.engine.speculation.suffix_automaton import ROOT, SuffixAutomaton, SuffixWriter
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import DraftWish, ObservedStep, ProposerContext

#: Tokens of a sequence added per step, so that a long prompt delays no step.
_INDEXED_PER_STEP = 1024
#: Maximum of a sequence's kept tokens: at this number the older half is dropped.
_MOST_INDEXED = 65_536
#: Number of contexts that are compared, from the longest on.
_MOST_CONTEXTS = 4
#: A context that was followed by this number of different tokens predicts nothing.
_MOST_WAYS = 64


@dataclass(slots=True)
class _Place:
    """The match of a sequence in an automaton of other sequences."""

    num_seen: int = 0
    state: int = ROOT
    length: int = 0


@dataclass(slots=True)
class _Memory:
    """The data of one sequence."""

    first: int
    num_seen: int
    automaton: SuffixAutomaton
    writer: SuffixWriter
    places: dict[SuffixAutomaton, _Place] = field(default_factory=dict)


class SuffixProposer:
    """See the module's text. The parameters are vLLM's `suffix_decoding_*`."""

    def __init__(self, context: ProposerContext) -> None:
        config = context.config
        self._depth = config.suffix_decoding_max_tree_depth
        self._factor = config.suffix_decoding_max_spec_factor
        self._min_prob = config.suffix_decoding_min_token_prob
        self._past = PastAnswers(config.suffix_decoding_max_cached_requests, self._depth)
        self._memories: dict[Sequence, _Memory] = {}

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """No hidden states."""
        return HiddenNeeds()

    def may_guess(self, seq: Sequence) -> bool:
        """Return whether the last token has occurred before: then the next one may be found."""
        memory = self._update(seq)
        if memory.num_seen == seq.num_tokens and memory.writer.repeated[1]:
            return True
        return any(self._match(memory, past, seq).length for past in self._past.automata)

    def propose(self, wishes: Seq[DraftWish]) -> list[Draft]:
        """See `Proposer.propose`."""
        self._past.take_in()
        return [self._guess(wish) for wish in wishes]

    def observe(self, step: ObservedStep) -> None:
        """Do nothing: all tokens are in the sequence."""

    def forget(self, seq: Sequence) -> None:
        """Add the answer of a sequence that has ended to the past answers."""
        known = self._memories.pop(seq, None)
        if known is not None and seq.status is Status.ENDED:
            self._past.add(seq.token_ids[seq.num_prompt_tokens :])

    def give_back(self, num_blocks: int) -> None:
        """Do nothing: no blocks are held."""

    def close(self) -> None:
        """See `Proposer.close`."""
        self._memories.clear()

    def _guess(self, wish: DraftWish) -> Draft:
        memory = self._update(wish.seq)
        best, most = NO_DRAFT, 0.0
        if memory.num_seen == wish.seq.num_tokens:
            best, most = self._best(memory.automaton, *memory.writer.repeated, wish.max_tokens)
        for automaton in self._past.automata:
            place = self._match(memory, automaton, wish.seq)
            draft, expected = self._best(automaton, place.state, place.length, wish.max_tokens)
            if expected > most:
                best, most = draft, expected
        return best

    def _update(self, seq: Sequence) -> _Memory:
        memory = self._memories.get(seq)
        if memory is None or memory.num_seen - memory.first >= _MOST_INDEXED:
            automaton = SuffixAutomaton()
            first = max(0, seq.num_tokens - _MOST_INDEXED // 2)
            writer = SuffixWriter(automaton, self._depth)
            memory = self._memories[seq] = _Memory(first, first, automaton, writer)
        end = min(seq.num_tokens, memory.num_seen + _INDEXED_PER_STEP)
        for token_id in seq.token_ids[memory.num_seen : end]:
            memory.writer.append(token_id)
        memory.num_seen = end
        return memory

    def _match(self, memory: _Memory, automaton: SuffixAutomaton, seq: Sequence) -> _Place:
        if automaton not in memory.places:
            # Automata of old answers are dropped, and with them the matches.
            memory.places = {a: p for a, p in memory.places.items() if a in self._past.automata}
        place = memory.places.setdefault(automaton, _Place())
        if place.num_seen < seq.num_tokens - self._depth:
            place.num_seen = seq.num_tokens - self._depth
            place.state, place.length = ROOT, 0
        for token_id in seq.token_ids[place.num_seen :]:
            state, length = automaton.find(place.state, place.length, token_id)
            place.length = min(length, self._depth - 1)
            place.state = automaton.settle(state, place.length)
        place.num_seen = seq.num_tokens
        return place

    def _best(
        self, automaton: SuffixAutomaton, state: int, length: int, max_tokens: int
    ) -> tuple[Draft, float]:
        """Return the best continuation of this context or a shorter one, with its expected hits."""
        # So that a context and one more token do not exceed the depth of counts.
        length = min(length, self._depth - 1)
        state = automaton.settle(state, length)
        best, most = NO_DRAFT, 0.0
        for _ in range(_MOST_CONTEXTS):
            num = min(max_tokens, int(self._factor * length))
            if state == ROOT or num <= most:
                break  # shorter contexts give shorter drafts
            token_ids, expected = self._continue(automaton, state, length, num)
            if expected > most:
                best, most = Draft(token_ids), expected
            state = automaton.links[state]
            length = automaton.lengths[state]
        return best, most

    def _continue(
        self, automaton: SuffixAutomaton, state: int, length: int, num_tokens: int
    ) -> tuple[list[int], float]:
        """Return the most frequent continuation, and the sum of its tokens' estimated
        probabilities.
        """
        token_ids: list[int] = []
        prob, expected = 1.0, 0.0
        while len(token_ids) < num_tokens:
            num_ways = automaton.num_ways(state)
            if not num_ways and state != ROOT:
                # No token has followed here: continue from other occurrences, too.
                state = automaton.links[state]
                length = automaton.lengths[state]
                continue
            if state == ROOT or num_ways > _MOST_WAYS:
                break
            token_id, following, share = _most_frequent(automaton, state)
            prob *= share
            if prob < self._min_prob:
                break
            token_ids.append(token_id)
            expected += prob
            length = min(length + 1, self._depth - 1)
            state = automaton.settle(following, length)
        return token_ids, expected


def _most_frequent(automaton: SuffixAutomaton, state: int) -> tuple[int, int, float]:
    """Return the most frequent token, its state, and its share; the smallest id among equals."""
    ways = [(automaton.counts[to], -token_id, to) for token_id, to in automaton.ways(state)]
    count, negative, following = max(ways)
    return -negative, following, count / sum(way[0] for way in ways)
