"""A grammar that begins after the model's reasoning.

Within the reasoning all tokens are allowed except end tokens: an answer that ends there would not
fit the grammar. Single tokens begin and end the reasoning, so the state follows from the answer's
tokens alone: it is the same after a hand-off, a replay and a rejected draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.grammar.positions import EVERYTHING, set_bit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from shared.engine.sequence.grammar import Grammar
    from shared.request.grammar.spec import Thinking


class ThinkingGrammar:
    """See `Grammar`."""

    def __init__(
        self,
        inner: Grammar,
        thinking: Thinking,
        *,
        end_token_ids: Collection[int],
        num_tokens: int = 0,
        num_before: int | None = None,
    ) -> None:
        """Start after `num_tokens` of the answer.

        `inner` is the state after the tokens that follow the first `num_before`; at its beginning
        if that is None. `end_token_ids` are the model's.
        """
        self._inner = inner
        self._thinking = thinking
        self._end_token_ids = frozenset(end_token_ids)
        self._num_tokens = num_tokens
        #: Number of tokens before `inner` begins; None: it has not begun.
        self._num_before = num_before

    @property
    def is_terminated(self) -> bool:
        """See `Grammar.is_terminated`."""
        return self._num_before is not None and self._inner.is_terminated

    @property
    def error(self) -> Exception | None:
        """See `Grammar.error`."""
        return None if self._is_inside else self._inner.error

    def ask_mask(self) -> None:
        """See `Grammar.ask_mask`."""
        if not self._is_inside:
            self._inner.ask_mask()

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        """See `Grammar.wait_mask`."""
        return self._is_inside or self._inner.wait_mask(timeout_s, patiently=patiently)

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
        # Reasoning that began with the first removed token begins anew with another one.
        if self._num_before is not None and self._num_tokens < max(self._num_before, 1):
            self._num_before = None

    @property
    def _may_begin(self) -> bool:
        return not self._num_tokens and not self._thinking.is_open

    @property
    def _is_inside(self) -> bool:
        return self._num_before is None and not self._may_begin


def answer_begin(token_ids: Sequence[int], thinking: Thinking) -> int | None:
    """Return how many tokens of an answer come before the grammar's own.

    None: the grammar has not begun, or there are no tokens.
    """
    if not token_ids:
        return None
    if not thinking.is_open and token_ids[0] != thinking.begin_token_id:
        return 0
    first = 0 if thinking.is_open else 1
    for place in range(first, len(token_ids)):
        if token_ids[place] == thinking.end_token_id:
            return place + 1
    return None
