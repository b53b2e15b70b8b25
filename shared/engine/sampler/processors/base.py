"""The interface of a custom logits processor. The operator of a worker chooses it, never a client.

A processor is made once per engine, and is called in the engine's thread only. What it remembers
of a sequence is an object of its own choice, made by `new_request` from the request and brought up
to date by `update` from the output's tokens. Nothing else may flow into it: a sequence that comes
from another worker, or comes back after a loss, is made again from its tokens, and must go on as if
nothing had happened. So what a processor does depends on the request and its tokens alone: not on
the other sequences of a batch, not on time, and not on how often it was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shared.request.sampling_params import SamplingParams

#: What a processor remembers of a sequence.
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a processor is made from."""

    vocab_size: int
    #: Of the logits.
    device: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A sequence as it came, without what was generated."""

    #: `extra_args` is what the client wrote for processors, from outside: check it.
    params: SamplingParams
    prompt_token_ids: Sequence[int]


class LogitsProcessor(Protocol[State]):
    """Changes logits. A class or function that takes a `ProcessorContext` makes it."""

    @property
    def is_argmax_invariant(self) -> bool:
        """Whether the most likely token always stays the same: then greedy sequences go without."""
        ...

    def new_request(self, request: NewRequest) -> State | None:
        """The state before any token of the output; None: this request wants nothing of it.

        It may be called again for the same request, to begin anew.

        Raises:
            InvalidRequestError: an argument is wrong; `param` names it, as "extra_args.name".
        """
        ...

    def update(self, state: State, token_ids: Sequence[int]) -> None:
        """The output has these tokens more, in order; called with all of them, once each."""
        ...

    def apply(self, logits: torch.Tensor, states: Sequence[State]) -> None:
        """Change `logits` in place, float32 [len(states), vocab]: row i is what state i's next
        token is chosen from. Penalties, temperature and the filters follow.

        -inf rules a token out. What is raised ends all sequences of the batch.
        """
        ...
