"""A grammar that begins where the model has finished thinking.

What is inside is free, but for end tokens: an answer that ends in the middle of it would not fit
the grammar. Where thinking begins and ends is said by single tokens, so the state follows from the
tokens of the answer alone: after a hand-off, a replay and a wrong guess it is what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.grammar.positions import EVERYTHING, set_bit

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

    from shared.engine.grammar.base import Grammar
    from shared.engine.grammar.spec import Thinking


class ThinkingGrammar:
    """See `Grammar`."""

    def __init__(
        self, inner: Grammar, thinking: Thinking, *, end_token_ids: Collection[int]
    ) -> None:
        """`inner` is at its beginning. `end_token_ids` are the model's."""
        self._inner = inner
        self._thinking = thinking
        self._end_token_ids = frozenset(end_token_ids)
        self._num_tokens = 0
        #: How many tokens there are up to where `inner` begins; None: that is still to come.
        self._num_before: int | None = None

    @property
    def is_terminated(self) -> bool:
        """See `Grammar.is_terminated`."""
        return self._num_before is not None and self._inner.is_terminated

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Grammar.fill_mask`."""
        if self._is_inside:
            bits[row] = EVERYTHING
            for token_id in self._end_token_ids:
                if token_id < 32 * bits.shape[1]:  # the tokenizer may know more than the model
                    set_bit(bits, row, token_id, to=False)
            return
        self._inner.fill_mask(bits, row)
        if self._may_begin:
            set_bit(bits, row, self._thinking.begin_token_id, to=True)

    def accept(self, token_id: int) -> bool:
        """See `Grammar.accept`."""
        if self._is_inside:
            if token_id in self._end_token_ids:
                return False
            if token_id == self._thinking.end_token_id:
                self._num_before = self._num_tokens + 1
        elif not (self._may_begin and token_id == self._thinking.begin_token_id):
            if not self._inner.accept(token_id):
                return False
            if self._num_before is None:
                self._num_before = 0
        self._num_tokens += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Grammar.rollback`."""
        if self._num_before is not None:
            self._inner.rollback(min(num_tokens, self._num_tokens - self._num_before))
        self._num_tokens -= num_tokens
        # What began with its very first token begins anew with another one.
        if self._num_before is not None and self._num_tokens < max(self._num_before, 1):
            self._num_before = None

    @property
    def _may_begin(self) -> bool:
        return not self._num_tokens and not self._thinking.is_open

    @property
    def _is_inside(self) -> bool:
        return self._num_before is None and not self._may_begin
