"""The plan of one step, as plain numbers: the whole input of a runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    import torch

    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.prompt_rows import PromptRows
    from shared.request.sampling_params import SamplingParams


#: In `StepPlan.adapters`, of a sequence without an adapter.
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class RowStart:
    """The row belongs to another sequence from now on: its earlier content is dropped."""

    row: int
    params: SamplingParams
    #: Whether sampling a next token requires the last one on the host, or returns more than its id.
    needs_host: bool
    #: Prompt and output so far; empty unless `needs_host`.
    token_ids: array[int]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """Blocks of a row's table of one group of layers, from place `first` on.

    A place that the runner has not got is never read: it is in front of a window.
    """

    row: int
    group: int
    first: int
    block_ids: array[int]


@dataclass(frozen=True, slots=True)
class PromptScore:
    """Logprobs of prompt tokens are requested: of each, given the tokens before it."""

    #: Index of the sequence in the batch.
    place: int
    #: The tokens after the first ones of the sequence that this step computes.
    token_ids: list[int]
    num_top: int
    #: Whether logits are requested in place of log probabilities.
    is_logits: bool = False


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Hidden states of a sequence's tokens are requested: those that this step has of them."""

    #: Index of the sequence in the batch.
    place: int
    which: PromptRows


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Embeddings of consecutive tokens, whose ids in the plan mean nothing."""

    #: Index of the first of these tokens in the step.
    first: int
    #: float32, float16 or bfloat16.
    dtype: str
    #: Numbers in a row.
    width: int
    #: [n, width], little-endian.
    data: bytes


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The tokens that a grammar allows."""

    #: Index of the sequence in the batch.
    place: int
    #: int32 [1 + drafts, ceil(vocab / 32)], on the host: bit i % 32 of word i // 32 is token i's.
    #: Row i is for the token after the first i drafts.
    bits: torch.Tensor


@dataclass(slots=True)
class StepPlan:
    """One step. Sequences are named by their index in the batch, tokens by theirs."""

    #: By sequence: its row, the position of its first token in the step, its number of tokens.
    rows: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    #: All sequences' tokens concatenated, drafts included; 0 where one is fed on the device.
    token_ids: list[int] = field(default_factory=list)
    #: By sequence: the model's slot with its adapter, or NO_SLOT; empty if none has an adapter.
    adapters: list[int] = field(default_factory=list)
    #: Ascending.
    given: list[GivenRows] = field(default_factory=list)
    #: Indexes of tokens that only the device has, and the rows that sampled them last.
    fed: list[int] = field(default_factory=list)
    fed_rows: list[int] = field(default_factory=list)
    #: Indexes of the sequences for which a next token is chosen, ascending.
    sampled: list[int] = field(default_factory=list)
    #: By index: the number of a sequence's last tokens that are drafts; only sequences with any.
    num_drafts: dict[int, int] = field(default_factory=dict)
    #: By index, float32 [drafts, vocab]: the distributions of drafts that were drawn.
    draft_probs: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Whether the host must have the tokens before the next step can be planned.
    is_synchronous: bool = False
    starts: list[RowStart] = field(default_factory=list)
    new_blocks: list[NewBlocks] = field(default_factory=list)
    #: By row: tokens after those sent before; only rows whose sampling uses them.
    new_tokens: dict[int, array[int]] = field(default_factory=dict)
    masks: list[RowMasks] = field(default_factory=list)
    scores: list[PromptScore] = field(default_factory=list)
    #: Of sequences that are not sampled.
    wanted_rows: list[WantedRows] = field(default_factory=list)
    #: By index: where to write the hidden states of a sequence's tokens.
    hidden: dict[int, PlacedHidden] = field(default_factory=dict)

    def next_position(self, place: int) -> int:
        """Return the position of the token after a sequence's own, without its drafts."""
        end = self.firsts[place] + self.num_new_tokens[place]
        return end - self.num_drafts.get(place, 0)

    @property
    def is_decoding(self) -> bool:
        """Whether every sequence computes its last token only, and nothing else is asked for."""
        has_more = self.scores or self.hidden or self.given or self.adapters
        return len(self.token_ids) == len(self.sampled) and not has_more
