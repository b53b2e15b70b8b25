"""The stages of a pipeline as one model, computed one after the other in one thread."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from shared.kv.split import KVSplit
from shared.model.loader import load_model
from shared.model.sharding.split import Split
from shared.model.sharding.stages import stage_layers
from tests.fakes.model.paged_driver import poisoned_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.adapted.base import AdapterWeights
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.loaded import LoadedModel


class OneThreadPipe:
    """See `Pipe`: what is received was sent before."""

    def __init__(self, before: deque[Tensor], behind: deque[Tensor]) -> None:
        self._before, self._behind = before, behind

    def send(self, tensor: Tensor) -> None:
        self._behind.append(tensor.clone())

    def receive(self, tensor: Tensor) -> None:
        sent = self._before.popleft()
        assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(sent)

    def close(self) -> None:
        pass


class StagedModel:
    """Stages of one rank each, every one with blocks of its own."""

    def __init__(self, stages: Sequence[LoadedModel]) -> None:
        self.stages: list[Any] = [stage.model for stage in stages]
        self.spec, self.dtype = stages[0].spec, stages[0].dtype
        layers = stage_layers(self.spec, len(stages))
        self._split = KVSplit.of_stages(self.spec.kv_groups, layers)
        #: By stage, with the blocks that it takes the place of.
        self._kept: tuple[Any, list[list[PagedCache]]] | None = None

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> Tensor:
        if self._kept is None or self._kept[0] is not kv_caches:
            own = [self._blocks(rank, kv_caches) for rank in range(len(self.stages))]
            self._kept = kv_caches, own
        for model, caches in zip(self.stages, self._kept[1], strict=True):
            found = model.forward(token_ids, positions, caches, metadata, given)
        return found

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.stages[-1].compute_logits(hidden)

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        first, *others = (stage.adapter_linears for stage in self.stages)
        assert all(found == first for found in others)
        return first

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        for stage in self.stages:
            stage.set_adapter(slot, weights)

    def _blocks(self, rank: int, whole: Sequence[Any]) -> list[PagedCache]:
        """A stage's layers of all groups, as they are: full of NaN."""
        num_tokens_groups = self.spec.num_token_groups
        shapes = [
            (len(self._split.layers(rank, number)), *cache.shape[2:])
            for number, cache in enumerate(whole)
        ]
        found = poisoned_groups(len(whole[0]), shapes[:num_tokens_groups], self.dtype)
        for shape in shapes[num_tokens_groups:]:
            found.append(torch.full((len(whole[0]), *shape), float("nan")))
        return found


def load_stages(path: Path, num_stages: int, **settings: Any) -> LoadedModel:
    """All stages of a model."""
    streams: list[deque[Tensor]] = [deque() for _ in range(num_stages + 1)]
    stages = [
        load_model(
            path,
            split=Split(rank=0, size=1, stage=number, num_stages=num_stages),
            pipe=OneThreadPipe(streams[number], streams[number + 1]),
            num_threads=num_stages,
            **settings,
        )
        for number in range(num_stages)
    ]
    return replace(stages[0], model=StagedModel(stages))
