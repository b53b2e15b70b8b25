"""What the sampler must know of one sequence."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from shared.engine.sequence.grammar import Grammar
    from shared.request.sampling_params import SamplingParams


class AttachedProcessor(Protocol):
    """A custom logits processor with what it remembers of one sequence."""

    #: Among all processors of the engine: the order in which they run.
    place: int
    processor: Any

    def state_for(self, sampling: SamplingState) -> Any:
        """Return the state that knows all of the output's tokens, and no other."""
        ...


class SamplingState:
    """Parameters and tokens of one sequence. `token_ids` is the sequence's own array and grows."""

    __slots__ = (
        "changes_logits",
        "draft_ids",
        "final_token_ids",
        "grammar",
        "num_prompt_tokens",
        "params",
        "processors",
        "token_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        token_ids: array[int],
        num_prompt_tokens: int,
        grammar: Grammar | None = None,
    ) -> None:
        self.params = params
        self.grammar = grammar
        #: Tokens at the end of `token_ids` that are only guessed: the grammar is in front of them.
        self.draft_ids: Sequence[int] = ()
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.final_token_ids = sorted(params.final_token_ids)
        #: Custom logits processors that this request wants, in order; see `ProcessorSet.prepare`.
        self.processors: tuple[AttachedProcessor, ...] = ()
        #: Whether anything but temperature and the filters touches the logits.
        self.changes_logits = bool(
            params.allowed_token_ids is not None
            or params.bad_words_token_ids
            or params.min_tokens
            or params.logit_bias
            or grammar is not None
            or self.has_penalties
        )

    def ahead(self, draft_ids: Sequence[int]) -> SamplingState:
        """The state as it would be behind these tokens, on a copy of the tokens."""
        later = copy(self)
        later.token_ids = self.token_ids[:]
        later.token_ids.extend(draft_ids)
        later.draft_ids = draft_ids
        return later

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were seen before are treated differently."""
        params = self.params
        return bool(
            params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        )

    @property
    def position(self) -> int:
        """Where the token to sample will stand, counted from the prompt's beginning."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def output_ends_with(self, token_ids: tuple[int, ...]) -> bool:
        """Whether the output so far, the prompt left out, ends like this."""
        num = len(token_ids)
        if num > self.num_output_tokens:
            return False
        return tuple(self.token_ids[len(self.token_ids) - num :]) == token_ids
