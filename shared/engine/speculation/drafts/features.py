"""Drafts by heads that continue from the target's hidden states, such as EAGLE's.

A head's view of a sequence begins with the first available hidden state: one that this engine
computed, or that was sent by a peer that computed the prompt. There are none for tokens that came
from the prefix cache or from a lower tier, here or there. Then the head sees less, and its first
drafts are worse; the target's check stays exact.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from shared.engine.sequence.draft import NO_DRAFT, Draft
from shared.engine.sequence.sequence import Status
from shared.engine.speculation.drafts.batch import DraftRow, pack
from shared.engine.speculation.drafts.loading import load_feature_head
from shared.engine.speculation.drafts.memory import DraftMemory
from shared.engine.speculation.drafts.pages import DraftPages
from shared.engine.step.hidden import HiddenNeeds
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import (
        DraftWish,
        ObservedPart,
        ObservedStep,
        ProposerContext,
    )

#: Maximum of a sequence's features that wait for the next draft. They are few if it drafts in every
#: step; if it does not, they must not accumulate.
_MAX_WAITING = 64


@dataclass(slots=True, eq=False)
class _View:
    """A head's view of a sequence: features from some position on, without a gap."""

    first_position: int
    table: array[int] = field(default_factory=lambda: array("i"))
    #: The number of leading features whose KV is computed.
    num_computed: int = 0
    #: Later features, [n, hidden] each, and of each the token after its own.
    waiting: list[torch.Tensor] = field(default_factory=list)
    waiting_ids: list[int] = field(default_factory=list)
    #: [1, hidden]: the head's output for the last computed one.
    guessed: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """Position after the last feature."""
        return self.first_position + self.num_computed + len(self.waiting_ids)

    def add(self, features: torch.Tensor, next_ids: array[int]) -> None:
        """Add features after the last one, [n, hidden], and of each the token after its own."""
        self.waiting.append(features)
        self.waiting_ids.extend(next_ids)

    def take(self, num: int) -> tuple[list[int], torch.Tensor]:
        """Remove the first waiting features; return their tokens and features."""
        ids, self.waiting_ids = self.waiting_ids[:num], self.waiting_ids[num:]
        features = torch.cat(self.waiting)
        self.waiting = [features[num:]] if self.waiting_ids else []
        return ids, features[:num]


class FeatureProposer:
    """See `Proposer`. A chain of most likely tokens."""

    def __init__(self, context: ProposerContext) -> None:
        """Use this head.

        Raises:
            ConfigError: it cannot be used with this target.
        """
        self._head = load_feature_head(context)
        layers = self._head.captured_layers
        if layers and not hasattr(context.target.model, "capture_layers"):
            raise ConfigError(
                f"speculative_config: method {context.config.method} needs hidden states of single "
                f"layers, which {type(context.target.model).__name__} does not give"
            )
        self._needs = HiddenNeeds(final=not layers, layers=layers)
        self._device = context.arena.device
        self._pages = DraftPages(context, self._head.spec, self._head.dtype)
        self._memory: DraftMemory[_View] = DraftMemory(self._pages)
        self._max_len = context.max_model_len
        self._max_batched_tokens = context.engine_config.max_num_batched_tokens

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """Final hidden states, or those of the layers that the head combines."""
        return self._needs

    def may_guess(self, seq: Sequence) -> bool:
        """Return True: a head can always draft."""
        return True

    @torch.inference_mode()
    def propose(self, wishes: Seq[DraftWish]) -> Seq[Draft]:
        """See `Proposer.propose`."""
        drafts = [NO_DRAFT] * len(wishes)
        ready: list[tuple[int, Sequence, _View, int]] = []
        for place, wish in enumerate(wishes):
            view, num_tokens = self._memory.get(wish.seq), wish.seq.num_tokens
            max_tokens = min(wish.max_tokens, self._max_len - num_tokens + 1)
            if view is None or view.end != num_tokens - 1 or max_tokens < 1:
                continue
            # The last draft token is never computed here.
            num_features = view.end - view.first_position + max_tokens - 1
            if self._memory.try_grow(wish.seq, view, num_features):
                ready.append((place, wish.seq, view, max_tokens))
        self._compute([(seq, view) for _, seq, view, _ in ready])
        ready = [one for one in ready if not one[2].waiting_ids]
        chains = self._chains([(view, max_tokens) for _, _, view, max_tokens in ready])
        for (place, *_), token_ids in zip(ready, chains, strict=True):
            drafts[place] = Draft(tuple(token_ids))
        return drafts

    @torch.inference_mode()
    def observe(self, step: ObservedStep) -> None:
        """See `Proposer.observe`."""
        full = []
        features = self._features(step)
        for part in step.parts:
            view = self._view_for(part)
            if view is None:
                continue
            begin, end = part.first_position, part.first_position + part.num_tokens
            next_ids = part.seq.token_ids[begin + 1 : end + 1]
            view.add(features[part.first_row : part.first_row + len(next_ids)], next_ids)
            if len(view.waiting_ids) > _MAX_WAITING:
                full.append((part.seq, view))
        self._compute(full)

    @torch.inference_mode()
    def receive(self, seq: Sequence, first_position: int, states: torch.Tensor) -> None:
        """See `StatesReader.receive`."""
        view = self._memory.get(seq)
        if view is None or view.end != first_position:
            view = self._memory.add(seq, lambda: _View(first_position))
        if view is not None:
            begin = first_position + 1
            next_ids = seq.token_ids[begin : begin + len(states)]
            view.add(self._head.features(states), next_ids)

    def forget(self, seq: Sequence) -> None:
        """See `Proposer.forget`."""
        self._memory.forget(seq)

    def give_back(self, num_blocks: int) -> None:
        """See `Proposer.give_back`."""
        self._memory.give_back(num_blocks)

    def close(self) -> None:
        """See `Proposer.close`."""
        self._memory.close()

    def _view_for(self, part: ObservedPart) -> _View | None:
        """Return the view that the part continues, or a new one without earlier features."""
        if part.seq.status is not Status.RUNNING or part.seq.request.hold_blocks:
            return None  # it will never draft
        view = self._memory.get(part.seq)
        if view is not None and view.end == part.first_position:
            return view
        return self._memory.add(part.seq, lambda: _View(part.first_position))

    def _features(self, step: ObservedStep) -> torch.Tensor:
        """Return a copy, so that no view keeps the whole step in memory."""
        layers = self._needs.layers
        if layers:
            hidden = torch.cat([step.layer_hidden[layer] for layer in layers], dim=-1)
            return self._head.features(hidden)
        assert step.final_hidden is not None
        return self._head.features(step.final_hidden).clone()

    def _compute(self, views: Seq[tuple[Sequence, _View]]) -> None:
        """Compute the waiting features, within a step's limit; fewest missing first."""
        left = self._max_batched_tokens
        rows, parts, reading = [], [], []
        for seq, view in sorted(views, key=lambda one: len(one[1].waiting_ids)):
            num = min(len(view.waiting_ids), left)
            if num and self._memory.try_grow(seq, view, view.num_computed + num):
                left -= num
                ids, features = view.take(num)
                rows.append(DraftRow(ids, view.num_computed, view.table, view.first_position))
                parts.append(features)
                reading.append(view)
        if not reading:
            return
        guessed = self._forward(rows, torch.cat(parts))
        for row, view in enumerate(reading):
            view.num_computed += len(rows[row].token_ids)
            view.guessed = guessed[row : row + 1]

    def _chains(self, views: Seq[tuple[_View, int]]) -> list[list[int]]:
        """Return tokens that follow each view, at most as many as it asks for.

        The first follows from the target's last feature, the others from predicted ones. Their KV
        is overwritten after the target's check.
        """
        chains: list[list[int]] = [[] for _ in views]
        active = list(range(len(views)))
        guessed = [view.guessed for view, _ in views if view.guessed is not None]
        features = torch.cat(guessed) if guessed else None
        while active and features is not None:
            for i, token in zip(active, self._head.most_likely(features).tolist(), strict=True):
                chains[i].append(token)
            on = [row for row, i in enumerate(active) if len(chains[i]) < views[i][1]]
            active = [active[row] for row in on]
            if not active:
                break
            rows = [
                DraftRow(
                    chains[i][-1:],
                    views[i][0].num_computed + len(chains[i]) - 1,
                    views[i][0].table,
                    views[i][0].first_position,
                )
                for i in active
            ]
            features = self._forward(rows, features[on])
        return chains

    def _forward(self, rows: Seq[DraftRow], features: torch.Tensor) -> torch.Tensor:
        """Return the predicted features [rows, hidden] after the last token of each row."""
        batch = pack(rows, self._pages.page_size, self._device)
        guessed = self._head.forward(
            batch.token_ids, features, batch.positions, self._pages.kv_cache, batch.metadata
        )
        return guessed[batch.last]
