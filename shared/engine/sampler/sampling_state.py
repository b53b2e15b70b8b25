"""The sampler's view of one sequence."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from torch import Tensor

    from shared.request.sampling_params import SamplingParams


class AttachedProcessor(Protocol):
    """A custom logits processor with its state of one sequence."""

    #: Index among all processors of the engine: they run in this order.
    place: int
    processor: Any

    def state_for(self, sampling: SamplingState) -> Any:
        """Return the state after exactly the output's tokens."""
        ...


class SamplingState:
    """Parameters and tokens of one sequence."""

    __slots__ = (
        "final_token_ids",
        "mask",
        "num_prompt_tokens",
        "params",
        "processors",
        "token_ids",
    )

    def __init__(
        self, params: SamplingParams, token_ids: array[int], num_prompt_tokens: int
    ) -> None:
        """Make the state.

        `token_ids`, prompt and output, is not copied: the caller appends tokens.
        """
        self.params = params
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.final_token_ids = sorted(params.final_token_ids)
        #: Custom logits processors that apply to this request, in order; see `ProcessorSet.attach`.
        self.processors: tuple[AttachedProcessor, ...] = ()
        #: int32 [ceil(vocab / 32)] on the host: the tokens that the sequence's grammar allows after
        #: `token_ids`. None: it has no grammar.
        self.mask: Tensor | None = None

    def ahead(self, draft_ids: Sequence[int], mask: Tensor | None = None) -> SamplingState:
        """Return the state after these further tokens, on a copy of the tokens."""
        later = copy(self)
        later.token_ids = self.token_ids[:]
        later.token_ids.extend(draft_ids)
        later.mask = mask
        return later

    @property
    def changes_logits(self) -> bool:
        """Whether any step other than temperature and filters changes the logits."""
        return bool(self.mask is not None or self.processors or self.params.changes_logits)

    @property
    def position(self) -> int:
        """Position of the next token, counted from the beginning of the prompt."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    def output_ends_with(self, token_ids: tuple[int, ...]) -> bool:
        """Return whether the output, without the prompt, ends with these tokens."""
        num = len(token_ids)
        if num > self.num_output_tokens:
            return False
        return tuple(self.token_ids[len(self.token_ids) - num :]) == token_ids
