"""The interface of a proposer, which drafts the tokens that the model then checks.

One step of the engine, as a proposer sees it:

1. `propose` drafts for the sequences that have one token left to compute. No step is in flight.
2. The engine cuts drafts (budget, blocks, grammar) or drops them, and computes the step.
3. `observe` reports what was computed and which tokens were sampled, for every sequence of the
   step, including those within their prompt. Rejected tokens are not reported.
4. `forget` is called for each sequence that ended or lost its blocks, at any time.

A proposer may see a sequence for the first time in `propose`: its KV may have come from a peer,
from the prefix cache or from a lower tier, so `observe` does not report every token. All tokens are
always in `sequence.token_ids`. `propose` is not called in every step: a step without drafts is
still observed.

All calls come from the engine's thread. A proposer never changes a sequence, and keeps its state by
sequence, from the first call with the sequence until `forget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Seq

    from torch import Tensor

    from shared.engine.memory.arena import KVArena
    from shared.engine.sequence.draft import Draft
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.settings.speculation import SpeculationConfig
    from shared.engine.step.hidden import HiddenNeeds
    from shared.model.loaded import LoadedModel


@dataclass(frozen=True, slots=True)
class DraftWish:
    """Draft at most `max_tokens` tokens, at least 1, that follow all of the sequence's tokens.

    KV of all its tokens but the last is final (`num_computed_tokens == num_tokens - 1`).
    """

    seq: Sequence
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ObservedPart:
    """The part of one sequence in a step. The new tokens are at its end already.

    `num_tokens` tokens from position `first_position` on are computed and kept: a chunk of the
    prompt, or the last token with the accepted drafts after it. Their hidden states, if any, are in
    the rows from `first_row` on, in this order.
    """

    seq: Sequence
    first_position: int
    num_tokens: int
    first_row: int
    #: Sampled in this step: the accepted drafts and one more. Empty within a prompt.
    new_token_ids: Seq[int]
    #: How many drafts were checked, and how many of them were accepted.
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One computed step.

    No later step changes its tensors. Copy the rows to keep: a view keeps all of them in memory.
    """

    parts: Seq[ObservedPart]
    #: [num_tokens_of_step, hidden] in the model's dtype, or float32; None if not needed.
    final_hidden: Tensor | None = None
    #: By layer: hidden states of the same shape.
    layer_hidden: Mapping[int, Tensor] = field(default_factory=dict)


class DraftBlocks(Protocol):
    """Blocks of the engine's pool for a proposer's own data, such as draft KV."""

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Return writable blocks; None if the engine's sequences need them all.

        Their bytes are `ProposerContext.arena.bytes()[block]`, with any content at first.
        """
        ...

    def release(self, blocks: Seq[int]) -> None:
        """Release blocks; each once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerContext:
    """Data for a proposer's construction. The engine owns all of it."""

    config: SpeculationConfig
    engine_config: EngineConfig
    #: The target model.
    target: LoadedModel
    max_model_len: int
    #: The bytes of the target's blocks.
    arena: KVArena
    blocks: DraftBlocks


class Proposer(Protocol):
    """Drafts tokens. Made by a factory that takes a `ProposerContext`: see `registry`."""

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """The hidden states that the proposer needs; constant."""
        ...

    def may_guess(self, seq: Sequence) -> bool:
        """Return whether to wait for the token of `seq` that is being computed, in order to draft.

        `seq` lacks that token yet. Called before every step that would wait, so it must be fast.
        Return False if `propose` would hardly find anything, True if that is unknown.
        """
        ...

    def propose(self, wishes: Seq[DraftWish]) -> Seq[Draft]:
        """Return one draft per wish, in order. Its time counts as cost of speculation.

        After an exception this step has no drafts, and speculation is turned off permanently.
        """
        ...

    def observe(self, step: ObservedStep) -> None:
        """Learn from a computed step. Called before `forget` for the sequences that it ended."""
        ...

    def forget(self, seq: Sequence) -> None:
        """Drop the state of `seq`, which ended or was preempted. A preempted one may come back.

        Also called for sequences that were never seen. Release their blocks now.
        """
        ...

    def give_back(self, num_blocks: int) -> None:
        """Release this number of blocks for the engine's sequences, or all.

        Called before a sequence is preempted. Drafts may become worse, never wrong.
        """
        ...

    def close(self) -> None:
        """Release everything. No call follows."""
        ...


@runtime_checkable
class StatesReader(Protocol):
    """Additional interface of a proposer that uses hidden states of prompts computed elsewhere.

    They are those of its `hidden_needs`, in the target's dtype.
    """

    def receive(self, seq: Sequence, first_position: int, states: Tensor) -> None:
        """Take the states [n, size] of tokens from `first_position` on, computed by a peer.

        Concatenated: those of the layers in the order of `hidden_needs`, then the final one. Called
        before `seq` runs here for the first time, any number of times, in order; the token after
        the last of them is known. They may begin anywhere in the prompt. Compute nothing now:
        `propose` may take its time.
        """
        ...
