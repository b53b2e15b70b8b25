"""The size of a step, in the units that its time depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepWork:
    """Sums over the sequences of one step."""

    #: Tokens computed for sequences that decode: one each, and their drafts.
    num_decoding: int = 0
    #: KV tokens of these sequences.
    num_context: int = 0
    #: Prompt tokens.
    num_prompt: int = 0
    #: Pairs of a prompt token and a token that it attends to.
    num_pairs: float = 0.0

    def add_prompt(self, num_tokens: int, context: int) -> None:
        """Count prompt tokens behind `context` tokens of their sequence."""
        self.num_prompt += num_tokens
        self.num_pairs += num_pairs(num_tokens, context)


def num_pairs(num_tokens: int, context: int) -> float:
    """Return the pairs of new tokens and tokens that they attend to, `context` of them earlier."""
    return num_tokens * (context + num_tokens / 2)
