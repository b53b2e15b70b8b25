"""A scheduled step as the model's input tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from shared.engine.step.plan import StepPlan
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds


@dataclass(slots=True)
class Batch:
    """All sequences' new tokens concatenated, on the model's device.

    Lent by `BatchBuilder.lend`: the next batch overwrites it. The same object with a later plan has
    the next token of each sequence: then only numbers have changed, and no tensor.
    """

    plan: StepPlan
    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    metadata: AttentionMetadata
    #: Index of each sequence's first token, and the end after the last one.
    starts: list[int]
    #: int64 [T]: see `BatchLayout`. None if no token is fed on the device.
    fed_rows: torch.Tensor | None
    #: int64, ascending: indexes, among the model's results, of the rows that tokens are chosen
    #: from: the last token of each sampled sequence, and its drafts; None if they are all rows.
    logits_at: torch.Tensor | None
    #: int64 [len(plan.sampled)]
    sampled_rows: torch.Tensor
    #: Numbers of tokens and sequences at the end that are padding.
    num_padding: int
    #: Embeddings of some of the tokens.
    given: GivenEmbeds | None = None
    #: By index in the plan: the row, among the model's results, of a sequence that wants one.
    rows_at: Mapping[int, int] = field(default_factory=dict)
