"""A bound on a model's reasoning before its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.grammar.spec import Thinking

PARAM = "thinking_token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """After this number of tokens of reasoning, the token that ends it is the only one left.

    The state follows from the answer's tokens alone: it is the same after a hand-off, a replay and
    a rejected draft.
    """

    #: Without the tokens around the reasoning.
    max_tokens: int
    thinking: Thinking

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            message = f"{PARAM} must be at least 0, not {self.max_tokens}"
            raise InvalidRequestError(message, param=PARAM)

    def is_spent(self, output: Sequence[int]) -> bool:
        """Return whether the next token of an answer must end the reasoning."""
        thinking = self.thinking
        if not thinking.is_open and (not output or output[0] != thinking.begin_token_id):
            return False
        first = 0 if thinking.is_open else 1
        if len(output) - first != self.max_tokens:
            # Before, there is something left; behind, it has ended.
            return False
        return thinking.end_token_id not in output[first:]
