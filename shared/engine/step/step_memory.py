"""Memory of the largest step besides weights and KV, measured by computing that step.

A CPU may need minutes for it. The memory of a step does not depend on the number of layers, as each
uses the memory of the one before: so on a CPU the first layer and one of each kind behind it
represent all. (The first one represents no other: its result is not added to anything.)
"""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch

from shared.engine.memory.arena import KVArena
from shared.engine.memory.kv_format import choose_format
from shared.engine.sampler.processors.attached import ProcessorSet
from shared.engine.step.parts import ModelInParts
from shared.engine.step.plan import RowStart
from shared.engine.step.tokens.choice import chooser_of
from shared.engine.step.tokens.row_states import RowState
from shared.errors import InternalError
from shared.model.attention.base import AttentionMetadata
from shared.model.checkpoint.loading.heap import give_back_free
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.settings.engine import EngineConfig
    from shared.kv.layout import KVLayout
    from shared.model.loaded import LoadedModel

#: Sampling with filters: that takes the most memory.
_SAMPLING = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, top_k=50, seed=0)
_CLEAR_REFS, _RESET_PEAK = Path("/proc/self/clear_refs"), "5"
_STATUS = Path("/proc/self/status")


def largest_step_bytes(
    loaded: LoadedModel, layout: KVLayout, config: EngineConfig, max_model_len: int
) -> int:
    """Return `step_bytes` of the largest step that an engine with these settings computes."""
    device = torch.device(config.device)
    return step_bytes(
        loaded,
        layout,
        device,
        num_tokens=config.max_num_batched_tokens,
        num_rows=config.max_num_seqs,
        max_model_len=max_model_len,
        scales=choose_format(config.kv_cache_dtype, loaded, device).of_groups(loaded),
    )


def step_bytes(
    loaded: LoadedModel,
    layout: KVLayout,
    device: torch.device,
    *,
    num_tokens: int,
    num_rows: int,
    max_model_len: int,
    scales: Sequence[torch.Tensor] | None = None,
) -> int:
    """Return the most bytes that a step takes, in addition to those in use.

    It computes `num_tokens` tokens, of which one has the longest context, and chooses tokens for
    `num_rows` sequences. What the model keeps for later steps is part of it. The rest is free again
    when this returns.
    """
    step = _Step(loaded, layout, device, num_tokens, max_model_len, scales)
    meter: _Meter = _CudaMeter(device) if device.type == "cuda" else _HostMeter()
    try:
        return meter.rise(partial(step.compute, num_rows))
    finally:
        del step
        meter.give_back()


class _Step:
    """One sequence's tokens at the end of the longest possible context.

    All of the context before them is one block, repeated.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        layout: KVLayout,
        device: torch.device,
        num_tokens: int,
        max_model_len: int,
        scales: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._model = loaded.model
        self._has_logits = loaded.shards is None or loaded.shards.split.is_last
        if device.type != "cuda":
            self._model = self._model.of_layers(_representatives(loaded))
        num_blocks = layout.num_blocks(num_tokens)
        self._arena = KVArena(layout, num_blocks, device=device, scales=scales)
        # KV is no part of a step's memory: write it before anything is measured.
        self._arena.blocks.zero_()
        self._layout, self._device = layout, device
        self._max_model_len = max_model_len
        #: Whether a step may be computed in parts, and another one beside it.
        self._has_parts = loaded.shards is None and isinstance(self._model, ModelInParts)
        self._largest = self._tokens(num_tokens)

    def _tokens(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """Return so many tokens, their positions and their metadata."""
        layout, device = self._layout, self._device
        num_blocks = layout.num_blocks(self._max_model_len)
        first = max(0, self._max_model_len - num_tokens)

        def put(values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        group = AttentionMetadata(
            query_start_loc=put([0, num_tokens]),
            seq_lens=put([first + num_tokens]),
            block_tables=torch.zeros(1, num_blocks + 1, dtype=torch.int32, device=device),
            slot_mapping=torch.arange(num_tokens, device=device),
            query_lens_list=[num_tokens],
            seq_lens_list=[first + num_tokens],
        )
        states = None
        if layout.has_states:
            num_state_groups = layout.num_groups - layout.num_token_groups
            states = torch.zeros(num_state_groups, 1, 2, dtype=torch.int32, device=device)
        others = (group,) * (layout.num_token_groups - 1)
        return (
            torch.zeros(num_tokens, dtype=torch.int64, device=device),
            torch.arange(num_tokens, device=device),
            replace(group, others=others, states=states),
        )

    @torch.inference_mode()
    def compute(self, num_rows: int) -> None:
        """Run the model on all tokens, then choose the next token of `num_rows` sequences.

        The ranks of a group do it together.
        """
        model = self._model
        token_ids, positions, metadata = self._largest
        if self._has_parts:
            hidden = self._compute_beside(min(num_rows, len(token_ids)))
        else:
            hidden = model.forward(token_ids, positions, self._arena.groups, metadata)
        if not self._has_logits:
            return
        rows = hidden[:1].expand(num_rows, -1).contiguous()
        row = RowState(RowStart(0, _SAMPLING, False, array("q"), 0), ProcessorSet())
        logits = model.compute_logits(rows)
        chooser_of(model, logits.device).choose(logits, [row] * num_rows, [1] * num_rows)

    def _compute_beside(self, num_rows: int) -> torch.Tensor:
        """Compute so many tokens beside all of them, whose hidden states are returned."""
        model = cast("ModelInParts", self._model)
        token_ids, positions, metadata = self._largest
        parts = model.begin_forward(token_ids, positions, self._arena.groups, metadata)
        ids, places, others = self._tokens(num_rows)
        self._model.compute_logits(self._model.forward(ids, places, self._arena.groups, others))
        parts.advance(math.inf)
        return parts.hidden


def _representatives(loaded: LoadedModel) -> list[int]:
    """Return the first layer that is computed, and of those behind it the first of each kind."""
    layers, own = loaded.spec.layers, range(loaded.spec.num_layers)
    if loaded.shards is not None:
        own = loaded.shards.layers
    first, *others = own
    return [first, *(n for n in others if layers[n] not in layers[first + 1 : n])]


class _Meter(Protocol):
    def rise(self, action: Callable[[], None]) -> int:
        """Return the maximum increase [bytes] of the memory in use."""
        ...

    def give_back(self) -> None:
        """Give the system back what is kept of freed memory."""
        ...


class _HostMeter:
    """Measures the process's resident memory."""

    def rise(self, action: Callable[[], None]) -> int:
        give_back_free()
        before = _status("VmRSS")
        _CLEAR_REFS.write_text(_RESET_PEAK)
        action()
        return _status("VmHWM") - before

    def give_back(self) -> None:
        give_back_free()


class _CudaMeter:
    """Measures PyTorch's memory on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def rise(self, action: Callable[[], None]) -> int:
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        action()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before

    def give_back(self) -> None:
        torch.cuda.empty_cache()


def _status(name: str) -> int:
    """Return a size of this process in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise InternalError(f"{_STATUS} says nothing of {name}")
