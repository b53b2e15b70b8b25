"""The result of a step: while it runs, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from shared.engine.step.readback import PendingTokens
    from shared.engine.step.returned_rows import ReturnedRows
    from shared.engine.step.state_rollback import KeptStates
    from shared.engine.step.tokens.verification import Verified
    from shared.request.answer import PositionLogprobs


@dataclass(slots=True)
class StepResult:
    """The result of a step, by index of sequences in its plan.

    Within a prompt nothing is sampled.
    """

    #: None if no token has a finite logit.
    token_ids: dict[int, int | None] = field(default_factory=dict)
    #: For sequences with drafts, instead.
    verified: dict[int, Verified] = field(default_factory=dict)
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    #: If requested: one row per row of logits, those of drafts included; float32, little-endian.
    hidden_states: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    #: float32 [n, hidden]: the states that `StepPlan.wanted_rows` asks for; once the step is
    #: collected, on the host.
    rows: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptHidden:
    """Hidden states of all tokens of a step, [num_tokens, hidden] each; they never change."""

    final: torch.Tensor
    by_layer: Mapping[int, torch.Tensor]
    #: By index in the plan: the first row of a sequence.
    first_rows: list[int]


@dataclass(slots=True)
class RunningStep:
    """A step that runs, or has run."""

    #: The part of the result that the host has already.
    result: StepResult
    #: The tokens that it has not, and the indexes of their sequences in the plan.
    pending: PendingTokens | None
    pending_of: list[int]
    #: The hidden states that its sequences return, complete when `pending` is.
    returned: ReturnedRows | None = None
    #: The hidden states of the step that a proposer needs.
    hidden: KeptHidden | None = None
    #: The states before the step, if it has drafts.
    before: KeptStates | None = None
