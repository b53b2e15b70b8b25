"""Drafts by Medusa heads: all tokens at once, from the hidden state of the last token.

A sequence whose prompt came from a peer has no hidden state yet: it drafts from its second step on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shared.engine.sequence.draft import NO_DRAFT, Draft
from shared.engine.speculation.drafts.loading import load_medusa_heads
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import DraftWish, ObservedStep, ProposerContext


class MedusaProposer:
    """See `Proposer`. A chain of each head's most likely token; it uses no blocks."""

    def __init__(self, context: ProposerContext) -> None:
        """Use these heads.

        Raises:
            ConfigError: they cannot be used with this target.
        """
        self._heads = load_medusa_heads(context)
        #: By sequence: its number of tokens, and the state that the last one was sampled from [1,
        #: hidden].
        self._last: dict[Sequence, tuple[int, torch.Tensor]] = {}

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """Final hidden states."""
        return HiddenNeeds(final=True)

    def may_guess(self, seq: Sequence) -> bool:
        """Return True: heads can always draft."""
        return True

    def propose(self, wishes: Seq[DraftWish]) -> Seq[Draft]:
        """See `Proposer.propose`."""
        drafts = [NO_DRAFT] * len(wishes)
        known = []
        for place, wish in enumerate(wishes):
            num_tokens, _ = self._last.get(wish.seq, (0, None))
            if num_tokens == wish.seq.num_tokens:
                known.append(place)
        if not known:
            return drafts
        longest = max(wishes[place].max_tokens for place in known)
        hidden = torch.cat([self._last[wishes[place].seq][1] for place in known])
        tokens = self._heads.most_likely(hidden, min(longest, self._heads.num_heads)).tolist()
        for place, token_ids in zip(known, tokens, strict=True):
            drafts[place] = Draft(tuple(token_ids[: wishes[place].max_tokens]))
        return drafts

    def observe(self, step: ObservedStep) -> None:
        """See `Proposer.observe`."""
        assert step.final_hidden is not None
        for part in step.parts:
            if part.new_token_ids:
                row = part.first_row + part.num_tokens - 1
                hidden = step.final_hidden[row : row + 1].clone()
                self._last[part.seq] = (part.seq.num_tokens, hidden)

    def forget(self, seq: Sequence) -> None:
        """See `Proposer.forget`."""
        self._last.pop(seq, None)

    def give_back(self, num_blocks: int) -> None:
        """Do nothing: no blocks are held."""

    def close(self) -> None:
        """See `Proposer.close`."""
        self._last.clear()
