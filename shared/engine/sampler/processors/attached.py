"""Custom logits processors with the sequences that want them: kept up to date, and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.engine.sampler.processors.base import NewRequest

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    import torch

    from shared.engine.sampler.processors.base import LogitsProcessor
    from shared.engine.sampler.state import SamplingState
    from shared.engine.sequence import Sequence


class Attached:
    """A processor's state for one sequence."""

    __slots__ = ("_num_seen", "_request", "place", "processor", "state")

    def __init__(
        self, place: int, processor: LogitsProcessor[Any], request: NewRequest, state: Any
    ) -> None:
        #: Among all processors of the engine: the order in which they run.
        self.place = place
        self.processor = processor
        self.state = state
        self._request = request
        self._num_seen = 0

    def catch_up(self, sampling: SamplingState) -> None:
        """Have the state know all of the output's tokens, and no other."""
        if self._num_seen > sampling.num_output_tokens:
            # Tokens were taken back: there is nothing but the beginning to go back to.
            self.state = self.processor.new_request(self._request)
            self._num_seen = 0
        new = sampling.token_ids[sampling.num_prompt_tokens + self._num_seen :]
        if new:
            self.processor.update(self.state, new.tolist())
            self._num_seen += len(new)

    def changes(self, sampling: SamplingState) -> bool:
        """Whether it can make a difference to this sequence."""
        return not (self.processor.is_argmax_invariant and sampling.params.is_greedy)


class ProcessorSet:
    """The processors of one engine, in the order in which they run."""

    def __init__(self, processors: Seq[LogitsProcessor[Any]] = ()) -> None:
        self.processors = tuple(processors)

    def prepare(self, seq: Sequence) -> Sequence:
        """Attach to a new sequence the processors that want it; returns the same sequence.

        Raises:
            InvalidRequestError: an argument for one of them is wrong.
        """
        if not self.processors:
            return seq
        sampling = seq.sampling_state
        request = NewRequest(sampling.params, seq.request.prompt_token_ids)
        attached = []
        for place, processor in enumerate(self.processors):
            state = processor.new_request(request)
            if state is not None:
                attached.append(Attached(place, processor, request, state))
        sampling.processors = tuple(each for each in attached if each.changes(sampling))
        if sampling.processors:
            sampling.changes_logits = True
            seq.needs_host_tokens = True
        return seq


def apply_processors(logits: torch.Tensor, states: Seq[SamplingState]) -> None:
    """Run each processor once, for all rows of `logits` [n, vocab] that want it, in place."""
    wanting: dict[int, list[tuple[int, Attached]]] = {}
    for row, state in enumerate(states):
        for attached in state.processors:
            attached.catch_up(state)
            wanting.setdefault(attached.place, []).append((row, attached))
    # Not in the order of their first rows: that would depend on who else is in the batch.
    for _, group in sorted(wanting.items()):
        rows = [row for row, _ in group]
        # A copy, so that nobody can touch the rows of others.
        own = logits[rows]
        group[0][1].processor.apply(own, [attached.state for _, attached in group])
        logits[rows] = own
