"""Custom logits processors attached to sequences: their states and their execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.engine.sampler.processors.base import NewRequest

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence as Seq

    import torch

    from shared.engine.sampler.processors.base import LogitsProcessor
    from shared.engine.sampler.sampling_state import AttachedProcessor, SamplingState
    from shared.request.sampling_params import SamplingParams


class Attached:
    """A processor's state for one sequence."""

    __slots__ = ("_num_seen", "_request", "_state", "_token_ids", "place", "processor")

    def __init__(
        self,
        place: int,
        processor: LogitsProcessor[Any],
        request: NewRequest,
        state: Any,
        token_ids: array[int],
    ) -> None:
        """Attach to a sequence. `token_ids` is the sequence's own array."""
        #: Index among all processors of the engine: they run in this order.
        self.place = place
        self.processor = processor
        self._request = request
        self._state = state
        self._token_ids = token_ids
        self._num_seen = 0

    def state_for(self, sampling: SamplingState) -> Any:
        """Return the state after exactly the output's tokens."""
        if sampling.token_ids is not self._token_ids:
            # A copy for draft tokens: an update of the state cannot be undone.
            return self._rebuilt(sampling)
        if self._num_seen > sampling.num_output_tokens:
            self._state = self._rebuilt(sampling)
        elif self._num_seen < sampling.num_output_tokens:
            self._tell(self._state, sampling, self._num_seen)
        self._num_seen = sampling.num_output_tokens
        return self._state

    def _rebuilt(self, sampling: SamplingState) -> Any:
        state = self.processor.new_request(self._request)
        if sampling.num_output_tokens:
            self._tell(state, sampling, 0)
        return state

    def _tell(self, state: Any, sampling: SamplingState, start: int) -> None:
        tokens = sampling.token_ids[sampling.num_prompt_tokens + start :]
        self.processor.update(state, tokens.tolist())


class ProcessorSet:
    """The processors of one engine, in the order of execution."""

    def __init__(self, processors: Seq[LogitsProcessor[Any]] = ()) -> None:
        self.processors = tuple(processors)

    def are_wanted(self, params: SamplingParams, prompt_token_ids: Seq[int]) -> bool:
        """Return whether any processor can change the output of this request.

        Raises:
            InvalidRequestError: an argument for one of them is wrong.
        """
        request = NewRequest(params, prompt_token_ids)
        # All are called: any of them may refuse the request.
        states = [processor.new_request(request) for processor in self.processors]
        return any(
            state is not None and _matters(processor, params)
            for processor, state in zip(self.processors, states, strict=True)
        )

    def attach(self, sampling: SamplingState) -> None:
        """Attach to a sequence the processors that can change its output."""
        prompt = tuple(sampling.token_ids[: sampling.num_prompt_tokens])
        request = NewRequest(sampling.params, prompt)
        attached = []
        for place, processor in enumerate(self.processors):
            state = processor.new_request(request)
            if state is not None and _matters(processor, sampling.params):
                attached.append(Attached(place, processor, request, state, sampling.token_ids))
        sampling.processors = tuple(attached)


def _matters(processor: LogitsProcessor[Any], params: SamplingParams) -> bool:
    return not (processor.is_argmax_invariant and params.is_greedy)


def apply_processors(logits: torch.Tensor, states: Seq[SamplingState]) -> None:
    """Run each processor once, in place, on all rows of `logits` [n, vocab] that use it."""
    wanting: dict[int, list[tuple[int, AttachedProcessor, Any]]] = {}
    for row, sampling in enumerate(states):
        for attached in sampling.processors:
            group = wanting.setdefault(attached.place, [])
            group.append((row, attached, attached.state_for(sampling)))
    # Not in the order of their first rows: that would depend on other sequences of the batch.
    for _, group in sorted(wanting.items()):
        rows = [row for row, _, _ in group]
        # A copy, so that a processor cannot change the rows of other sequences.
        own = logits[rows]
        group[0][1].processor.apply(own, [state for _, _, state in group])
        logits[rows] = own
