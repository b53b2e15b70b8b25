"""The interface of a proposer, which guesses the tokens that the model then checks.

One step of the engine, as a proposer sees it:

1. `propose` guesses for the sequences that have one token left to compute. No step is in flight.
2. The engine cuts drafts (budget, blocks, grammar) or leaves them out, and computes the step.
3. `observe` tells what was computed and which tokens came out, for every sequence of the step,
   those that still read their prompt included. Nothing is told of rejected tokens.
4. `forget` is called for each sequence that ended or lost its blocks, whenever that happens.

A proposer may see a sequence for the first time in `propose`: its KV may have come from a peer,
from the prefix cache or from a lower tier, so `observe` does not tell of every token. The tokens
themselves are always all there: `sequence.token_ids`. It is also not asked in every step: a step
without drafts is still observed.

All calls come from the engine's thread. A proposer never changes a sequence, and keeps its own
state by the sequence itself, from the first time it sees it until `forget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Sequence as Seq

    from torch import Tensor

    from shared.engine.config import EngineConfig
    from shared.engine.memory.arena import KVArena
    from shared.engine.sequence.draft import Draft
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation_config import SpeculationConfig
    from shared.engine.step.hidden import HiddenNeeds
    from shared.model.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class DraftWish:
    """Guess at most `max_tokens` tokens, at least 1, that follow all of the sequence's tokens.

    KV of all its tokens but the last is final (`num_computed_tokens == num_tokens - 1`).
    """

    seq: Sequence
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ObservedPart:
    """What a step did for one sequence. By now the new tokens are at its end.

    `num_tokens` tokens from position `first_position` on are computed and stay: a chunk of the
    prompt, or the last token with the accepted drafts behind it. Their hidden states, if any, are
    in the rows from `first_row` on, in this order.
    """

    seq: Sequence
    first_position: int
    num_tokens: int
    first_row: int
    #: Sampled in this step: the accepted drafts and one more. Empty within a prompt.
    new_token_ids: Seq[int]
    #: How many drafts were checked, and how many of them were right.
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step that was computed.

    No later step changes its tensors. Copy the rows that stay: a view keeps all of them in memory.
    """

    parts: Seq[ObservedPart]
    #: [num_tokens_of_step, hidden] in the model's dtype, or float32; None if it was not asked for.
    final_hidden: Tensor | None = None
    #: By layer: hidden states of the same form.
    layer_hidden: Mapping[int, Tensor] = field(default_factory=dict)


class DraftBlocks(Protocol):
    """Blocks of the engine's own pool for what a proposer keeps of its own, such as draft KV."""

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Take blocks, ready to be written; None if the engine's sequences have them all.

        Their bytes are `ProposerContext.arena.bytes()[block]`, of any content at first.
        """
        ...

    def release(self, blocks: Seq[int]) -> None:
        """Give blocks back; each once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerContext:
    """What a proposer is made from. It takes what it needs; the engine owns all of it."""

    config: SpeculationConfig
    engine_config: EngineConfig
    #: The model whose tokens are guessed.
    target: LoadedModel
    max_model_len: int
    #: The bytes of the target's blocks.
    arena: KVArena
    blocks: DraftBlocks


class Proposer(Protocol):
    """Guesses tokens. Made by a factory that takes a `ProposerContext`: see `registry`."""

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """The hidden states that the proposer needs; constant."""
        ...

    def may_guess(self, seq: Sequence) -> bool:
        """Whether it is worth waiting for the token of `seq` that is being computed, to guess on.

        `seq` lacks that token yet. Asked before every step that would wait, so it must be cheap;
        False where `propose` would hardly find anything, True where it cannot tell.
        """
        ...

    def propose(self, wishes: Seq[DraftWish]) -> Seq[Draft]:
        """One draft per wish, in order. What it takes counts as cost of speculating.

        It may raise: then this step has no drafts, and speculation is turned off for good.
        """
        ...

    def observe(self, step: ObservedStep) -> None:
        """Learn from a computed step. Comes before `forget` of the sequences that it ended."""
        ...

    def forget(self, seq: Sequence) -> None:
        """`seq` ended or was preempted; in the latter case it may come back, from the beginning.

        Also called for sequences that were never seen. Blocks held for it are given back now.
        """
        ...

    def give_back(self, num_blocks: int) -> None:
        """The engine's sequences need that many blocks: release so many, or all there are.

        Called before a sequence is preempted. Drafts become worse for it, never wrong.
        """
        ...

    def close(self) -> None:
        """Give everything back. Nothing is called afterwards."""
        ...


@runtime_checkable
class StatesReader(Protocol):
    """What a proposer has besides that makes use of hidden states of prompts computed elsewhere.

    They are those that its `hidden_needs` name, in the target's dtype.
    """

    def receive(self, seq: Sequence, first_position: int, states: Tensor) -> None:
        """States [n, size] of the tokens from `first_position` on, computed by a peer.

        Side by side: those of the layers in the order in which they are named, then the final one.
        Comes before `seq` runs here for the first time, any number of times, in order; the token
        behind the last of them is known. They may begin anywhere in the prompt. Nothing is
        computed now: `propose` may take its time.
        """
        ...
