"""The interface of a custom logits processor. A worker's operator chooses it, never a client.

A processor is made once per engine and called in the engine's thread only. Its state of a sequence
is an object of its own type, made by `new_request` from the request and updated by `update` with
the output's tokens. The state must depend on nothing else: for a sequence that comes from another
worker, or continues after a loss, it is made again from the tokens, and must be the same. So the
behaviour of a processor depends on the request and its tokens alone: not on other sequences of a
batch, not on time, and not on the number of calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shared.request.sampling_params import SamplingParams

#: A processor's state of a sequence.
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """Data for a processor's construction."""

    vocab_size: int
    #: Device of the logits.
    device: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A new sequence, without generated tokens."""

    #: `extra_args` comes from the client: check it.
    params: SamplingParams
    #: With NO_TOKEN (-1) where the prompt gives an embedding.
    prompt_token_ids: Sequence[int]


class LogitsProcessor(Protocol[State]):
    """Changes logits. Made by a class or function that takes a `ProcessorContext`."""

    @property
    def is_argmax_invariant(self) -> bool:
        """Whether the most likely token never changes: then greedy sequences skip the processor."""
        ...

    def new_request(self, request: NewRequest) -> State | None:
        """Return the state before the output; None: the processor does not apply to this request.

        It may be called again for the same request, to start again.

        Raises:
            InvalidRequestError: an argument is wrong; `param` names it, as "extra_args.name".
        """
        ...

    def update(self, state: State, token_ids: Sequence[int]) -> None:
        """Update the state with the next tokens of the output; each token is passed once."""
        ...

    def apply(self, logits: torch.Tensor, states: Sequence[State]) -> None:
        """Change `logits` in place, float32 [len(states), vocab].

        The next token of state i is chosen from row i. Penalties, temperature and the filters
        follow. -inf forbids a token. An exception ends all sequences of the batch.
        """
        ...
