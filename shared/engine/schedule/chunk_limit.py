"""How much of prompts a step computes while other sequences decode.

Every sequence that decodes gets its next token when the step is over, so prompts in it keep it
waiting. Each of these sequences has a limit for the time of a step: the bound of its request, or
without one a multiple of the step without prompts, if the worker has a preference. The tightest
holds. One that was handed over has waited for the end of a step already, so the step with
its second token is not stretched. A step of prompts alone has a limit, too, if the worker has a
preference: others may hand over to it at any time. At least a block of prompt tokens is computed in
every step, so that prompts always go on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.engine.sequence.request import KVSource
from shared.engine.timing.step_bound import LONGEST_STEP_MS, prompt_room_ms
from shared.engine.timing.step_work import StepWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.timing.step_model import StepModel
    from shared.identity import Role

#: A bound is aimed at with a reserve: a share of it, and a number of the model's median errors.
_RESERVE_SHARE = 0.05
_RESERVE_ERRORS = 2.0


class ChunkLimit:
    """Used once per step: `open`, then `most` and `take` for each prompt."""

    def __init__(self, model: StepModel, *, block_size: int, num_stages: int = 1) -> None:
        """A token waits for a step of each of `num_stages`, so each has a share of its bound."""
        self._model = model
        self._block_size = block_size
        self._num_stages = num_stages
        #: What the worker prefers; None: only bounds set a limit.
        self.preference: Role | None = None
        #: Whether any sequence has had a bound.
        self._has_bounds = False
        #: What the step has for prompts, and what is left of it. [ms]
        self._room_ms = self._left_ms = math.inf
        self._is_closed = False
        #: Tokens that are computed in any case.
        self._num_sure = 0
        #: Whether a prompt got less in this step than its budget had room for.
        self.has_cut = False

    def note(self, seq: Sequence) -> None:
        """Take notice of a new sequence."""
        self._has_bounds = self._has_bounds or seq.request.max_itl_ms > 0

    @property
    def is_open(self) -> bool:
        """Whether prompts may take all of the step's budget."""
        return self._left_ms == math.inf and not self._is_closed

    def open(self, decoding: Iterable[Sequence], step: Mapping[Sequence, int]) -> None:
        """Begin a step. `decoding`: all sequences that decode; `step`: what it computes of them."""
        self._room_ms = self._left_ms = math.inf
        self._num_sure, self.has_cut, self._is_closed = self._block_size, False, False
        is_shared = self.preference is not None
        if not self._has_bounds and not is_shared:
            return
        bound_ms, is_unbound, has_waited = math.inf, False, False
        for seq in decoding:
            has_waited = has_waited or _has_waited(seq)
            if seq.request.max_itl_ms:
                bound_ms = min(bound_ms, seq.request.max_itl_ms)
            else:
                is_unbound = True
        if bound_ms == math.inf and not is_shared:
            return
        work = StepWork(sum(step.values()), sum(seq.num_tokens for seq in step))
        plain_ms = self._model.cost.step_ms(work)
        reserve = _RESERVE_SHARE + _RESERVE_ERRORS * self._model.median_error
        limit_ms = bound_ms / self._num_stages / (1 + reserve)
        if is_unbound and is_shared:
            room_ms = prompt_room_ms(plain_ms, self._model.cost.per_step)
            limit_ms = min(limit_ms, plain_ms + room_ms)
        elif bound_ms == math.inf:
            limit_ms = LONGEST_STEP_MS / self._num_stages
        self._room_ms = self._left_ms = limit_ms - plain_ms
        if has_waited:
            self._left_ms = min(self._left_ms, 0.0)

    def close(self) -> float:
        """Let the step compute no prompts; return the milliseconds that it had for them.

        These come behind the step, so no token in it waits for them.
        """
        self._is_closed = True
        return self._room_ms

    def most(self, num_tokens: int, context: int) -> int:
        """Return how many of a prompt's next tokens, behind `context`, the step may compute."""
        if self._is_closed:
            return 0
        if self.is_open:
            return num_tokens
        num = self._model.cost.num_tokens_in(self._left_ms, context, num_tokens)
        num = min(num_tokens, max(num, self._num_sure))
        self.has_cut = self.has_cut or num < num_tokens
        return num

    def take(self, num_tokens: int, context: int) -> None:
        """Count tokens of a prompt that the step computes."""
        if not self.is_open:
            self._left_ms -= self._model.cost.more_ms(num_tokens, context)
            self._num_sure = max(0, self._num_sure - num_tokens)


def _has_waited(seq: Sequence) -> bool:
    """Return whether its first token came from a peer, and its second is next."""
    is_first = seq.num_tokens == seq.num_prompt_tokens + 1
    return is_first and seq.request.kv_source is KVSource.TRANSFER
