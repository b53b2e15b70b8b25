"""States of sequences whose drafts are rejected: they are what only the accepted tokens make.

A step with drafts changes states by all of them. It is known later how many are accepted, so the
states before the step are kept; if a draft is rejected, they are put back, and the accepted tokens
are computed once more.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shared.engine.step.plan import NewBlocks, StepPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernels.kv_write.cache import PagedCache
    from shared.engine.step.batch.batch import Batch
    from shared.engine.step.batch.builder import BatchBuilder
    from shared.engine.step.causal_model import CausalModel
    from shared.engine.step.tokens.verification import Verified


@dataclass(frozen=True, slots=True)
class KeptStates:
    """The states before a step, of its sequences with drafts."""

    #: Indexes of the sequences in the batch.
    places: tuple[int, ...]
    #: By group with states: the blocks that the step read, and wrote.
    read: tuple[Tensor, ...]
    written: tuple[Tensor, ...]
    #: By group: what the blocks that were read held.
    values: tuple[Tensor, ...]


class StateRollback:
    """Keeps states, and puts them back, in the blocks of one arena."""

    def __init__(self, caches: Sequence[PagedCache], num_states: int, block_size: int) -> None:
        """`caches`: of all groups, of which the last `num_states` have states."""
        self._first_group = len(caches) - num_states
        self._caches = caches
        self._states = [own for own in caches[self._first_group :] if isinstance(own, Tensor)]
        self._block_size = block_size

    def keep(self, batch: Batch) -> KeptStates | None:
        """Return the states before a step, copied; None if it has no drafts, or no states."""
        places = tuple(batch.plan.num_drafts)
        if not places or batch.metadata.states is None:
            return None
        rows = batch.metadata.states[:, list(places)].long()
        return KeptStates(
            places,
            tuple(own[:, 0].clone() for own in rows),
            tuple(own[:, 1].clone() for own in rows),
            tuple(
                states[own[:, 0].clamp(min=0)]
                for states, own in zip(self._states, rows, strict=True)
            ),
        )

    @torch.inference_mode()
    def restore(
        self,
        kept: KeptStates,
        plan: StepPlan,
        verified: Mapping[int, Verified],
        model: CausalModel,
        batches: BatchBuilder,
    ) -> None:
        """Bring the states of the step's sequences to the end of their accepted tokens."""
        again = StepPlan()
        starts = [0, *accumulate(plan.num_new_tokens)]
        for index, place in enumerate(kept.places):
            num = len(verified[place].token_ids)
            if not 0 < num < plan.num_new_tokens[place]:
                continue
            for states, read, values in zip(self._states, kept.read, kept.values, strict=True):
                if read[index] >= 0:
                    states[read[index]] = values[index]
            row, first = plan.rows[place], plan.firsts[place]
            again.rows.append(row)
            again.firsts.append(first)
            again.num_new_tokens.append(num)
            if plan.adapters:
                again.adapters.append(plan.adapters[place])
            again.token_ids += plan.token_ids[starts[place] : starts[place] + num]
            end = (first + num - 1) // self._block_size
            again.new_blocks += [
                NewBlocks(row, self._first_group + number, end, array("i", [int(written[index])]))
                for number, written in enumerate(kept.written)
            ]
        if again.rows:
            with batches.lend(again) as batch:
                model.forward(batch.token_ids, batch.positions, self._caches, batch.metadata)
