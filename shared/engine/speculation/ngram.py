"""Prompt lookup: copy the tokens after the first occurrence of the last tokens.

A. Saxena, "Prompt lookup decoding" (2023): answers that quote, correct or continue the context can
be drafted from it, without a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.draft import NO_DRAFT, Draft
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import DraftWish, ObservedStep, ProposerContext

#: Tokens indexed per sequence and step: a long prompt is indexed over several steps, so that no
#: step waits for it.
_INDEXED_PER_STEP = 8192


class NgramIndex:
    """End of the first occurrence of each n-gram of a growing sequence, for a range of n.

    A token costs one entry per n, whatever the length of the sequence.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        #: By n, from `shortest`: n-gram to the index after its first occurrence.
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(shortest, longest + 1)]
        #: By n: that index for the n-gram that ends with the last token, if it occurred before.
        self._earlier: list[int | None] = [None] * len(self._ends)
        #: Prefix of every n-gram, one token shorter than the shortest; whether the last one had
        #: occurred before.
        self._stems: set[tuple[int, ...]] = {()}
        self.may_match = False
        self.num_tokens = 0

    def extend(self, token_ids: array[int], end: int) -> None:
        """Add the tokens up to `end` of a sequence whose first ones were added before."""
        for place in range(self.num_tokens + 1, end + 1):
            for offset, ends in enumerate(self._ends):
                num = self._shortest + offset
                if num > place:
                    break
                ngram = tuple(token_ids[place - num : place])
                first = ends.setdefault(ngram, place)
                self._earlier[offset] = first if first < place else None
            stem = tuple(token_ids[max(0, place - self._shortest + 1) : place])
            self.may_match = stem in self._stems
            self._stems.add(stem)
        self.num_tokens = max(self.num_tokens, end)

    def find(self) -> int | None:
        """Return the index after the first occurrence of the longest n-gram at the end.

        None if it has not occurred before.
        """
        return next((place for place in reversed(self._earlier) if place is not None), None)


def follow(token_ids: array[int], place: int, num_tokens: int) -> list[int]:
    """Return `num_tokens` tokens: copies of `token_ids` from `place` on, and then of themselves.

    So the tokens after `place` are repeated as a loop. `place` is before the end.
    """
    period = len(token_ids) - place
    found = token_ids[place : place + num_tokens].tolist()
    while len(found) < num_tokens:
        found.append(found[len(found) - period])
    return found


class NgramProposer:
    """Looks up n-grams of `prompt_lookup_max` down to `prompt_lookup_min` tokens."""

    def __init__(self, context: ProposerContext) -> None:
        self._shortest = context.config.prompt_lookup_min
        self._longest = context.config.prompt_lookup_max
        self._indexes: dict[Sequence, NgramIndex] = {}

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """No hidden states."""
        return HiddenNeeds()

    def may_guess(self, seq: Sequence) -> bool:
        """Return whether an n-gram that ends with the next token can have occurred before."""
        index = self._index(seq)
        return index.num_tokens == seq.num_tokens and index.may_match

    def propose(self, wishes: Seq[DraftWish]) -> list[Draft]:
        """See `Proposer.propose`."""
        return [self._guess(wish) for wish in wishes]

    def observe(self, step: ObservedStep) -> None:
        """Do nothing: all tokens are in the sequence."""

    def forget(self, seq: Sequence) -> None:
        """See `Proposer.forget`."""
        self._indexes.pop(seq, None)

    def give_back(self, num_blocks: int) -> None:
        """Do nothing: no blocks are held."""

    def close(self) -> None:
        """See `Proposer.close`."""
        self._indexes.clear()

    def _guess(self, wish: DraftWish) -> Draft:
        seq, index = wish.seq, self._index(wish.seq)
        place = index.find()
        if index.num_tokens < seq.num_tokens or place is None:
            return NO_DRAFT
        return Draft(follow(seq.token_ids, place, wish.max_tokens))

    def _index(self, seq: Sequence) -> NgramIndex:
        """Return the index of a sequence, extended by as many tokens as a step may add."""
        index = self._indexes.get(seq)
        if index is None:
            index = self._indexes[seq] = NgramIndex(self._shortest, self._longest)
        index.extend(seq.token_ids, min(seq.num_tokens, index.num_tokens + _INDEXED_PER_STEP))
        return index
