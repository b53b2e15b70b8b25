"""What one step computes, as plain numbers: what a runner must know, and all that it is told.

A runner keeps a row of its own per running sequence: its block tables, its sampling parameters, and
its tokens where sampling looks at them. A plan says which rows change hands, what is new in the
others, and what to compute. So a runner needs no sequence and no scheduler, and works as well in
another process, which gets the same plans in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    import torch

    from shared.engine.prompt_states import PlacedStates
    from shared.request.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RowStart:
    """A row is another sequence's from now on: nothing is known of the one before."""

    row: int
    params: SamplingParams
    #: Whether a next token cannot be sampled before the host knows the last one, or says more
    #: about it than its id.
    needs_host: bool
    #: Prompt and output so far; empty unless `needs_host`.
    token_ids: array[int]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """Blocks of a row's tables, from place `first` on."""

    row: int
    first: int
    #: The new blocks of each group of layers; equally many for each.
    block_ids: tuple[array[int], ...]


@dataclass(frozen=True, slots=True)
class PromptScore:
    """Logprobs of prompt tokens are wanted: of each behind the token in front of it."""

    #: Of the sequence in the batch.
    place: int
    #: The tokens behind the first ones of the sequence that are computed in this step.
    token_ids: list[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Which tokens a grammar allows."""

    #: Of the sequence in the batch.
    place: int
    #: int32 [1 + drafts, ceil(vocab / 32)], on the host: bit i % 32 of word i // 32 is token i's.
    #: Row i is for the token behind the first i drafts.
    bits: torch.Tensor


@dataclass(slots=True)
class StepPlan:
    """One step. Sequences are named by their places in the batch, tokens by theirs."""

    #: Of each sequence: its row, the position of its first token in the step, how many tokens.
    rows: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    #: All sequences' tokens behind each other, drafts included; 0 where one is fed.
    token_ids: list[int] = field(default_factory=list)
    #: Places of tokens that only the device knows, and the rows that sampled them last.
    fed: list[int] = field(default_factory=list)
    fed_rows: list[int] = field(default_factory=list)
    #: Places of the sequences of which a next token is chosen, ascending.
    sampled: list[int] = field(default_factory=list)
    #: By place: how many of a sequence's last tokens are drafts; only those with any.
    num_drafts: dict[int, int] = field(default_factory=dict)
    #: By place, float32 [drafts, vocab]: what drafts were drawn from, if they were.
    draft_probs: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Whether the host must have the tokens before the next step can be planned.
    is_synchronous: bool = False
    starts: list[RowStart] = field(default_factory=list)
    new_blocks: list[NewBlocks] = field(default_factory=list)
    #: By row: tokens behind those that it was told of; only rows whose sampling looks at them.
    new_tokens: dict[int, array[int]] = field(default_factory=dict)
    masks: list[RowMasks] = field(default_factory=list)
    scores: list[PromptScore] = field(default_factory=list)
    #: By place: where the hidden states of a sequence's tokens go.
    states: dict[int, PlacedStates] = field(default_factory=dict)

    def next_position(self, place: int) -> int:
        """Where the token behind a sequence's own, its drafts left out, will stand."""
        end = self.firsts[place] + self.num_new_tokens[place]
        return end - self.num_drafts.get(place, 0)

    @property
    def is_decoding(self) -> bool:
        """Whether every sequence computes its last token, and nothing else is wanted."""
        return len(self.token_ids) == len(self.sampled) and not (self.scores or self.states)
