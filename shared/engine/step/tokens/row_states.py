"""A runner's state of its rows between steps: how their tokens are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sampler.sampling_state import SamplingState

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.engine.sampler.processors.attached import ProcessorSet
    from shared.engine.step.plan import RowStart, StepPlan
    from shared.request.sampling_params import SamplingParams


class RowState:
    """One row."""

    __slots__ = ("is_greedy", "needs_host", "params", "sampling")

    def __init__(self, start: RowStart, processors: ProcessorSet) -> None:
        self.params: SamplingParams = start.params
        self.is_greedy = start.params.is_greedy
        self.needs_host = start.needs_host
        #: None if sampling uses parameters and positions only.
        self.sampling: SamplingState | None = None
        if start.needs_host:
            self.sampling = SamplingState(start.params, start.token_ids, start.num_prompt_tokens)
            processors.attach(self.sampling)


class RowStates:
    """All rows of a runner."""

    def __init__(self, processors: ProcessorSet) -> None:
        self._rows: dict[int, RowState] = {}
        #: The rows whose tokens come with hidden states.
        self._returning: set[int] = set()
        self._processors = processors

    def follow(self, plan: StepPlan) -> None:
        """Apply what is new in the plan. Each plan once, in order."""
        for start in plan.starts:
            self._rows[start.row] = RowState(start, self._processors)
            if start.params.return_hidden_states:
                self._returning.add(start.row)
            else:
                self._returning.discard(start.row)
        for row, token_ids in plan.new_tokens.items():
            sampling = self._rows[row].sampling
            assert sampling is not None
            sampling.token_ids.extend(token_ids)

    def sampled(self, plan: StepPlan) -> list[RowState]:
        """Return the states of sequences for which a next token is chosen, in the order of the
        plan.
        """
        states, rows = self._rows, plan.rows
        return [states[rows[place]] for place in plan.sampled]

    def returned(self, plan: StepPlan) -> Collection[int]:
        """Return the indexes of sampled sequences that ask for the hidden states behind a token."""
        returning, rows = self._returning, plan.rows
        if not returning:
            return ()
        return {place for place in plan.sampled if rows[place] in returning}
