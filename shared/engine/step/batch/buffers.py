"""A step's numbers in one contiguous buffer, which one copy brings to the device."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Number of layouts whose views are cached: a decoding batch has the same one in many steps.
_NUM_REMEMBERED = 64
#: Alignment of every part in bytes, so that a kernel compiled for one step fits all.
_ALIGNMENT = 16
_LONG, _INT = np.dtype(np.int64), np.dtype(np.int32)


@dataclass(frozen=True)
class BatchLayout:
    """The layout of a step's parts. Steps of equal layout have equal addresses."""

    num_tokens: int
    num_seqs: int
    #: Blocks per row of the block tables.
    table_width: int
    #: Groups of layers that share block tables: each has tables and slots.
    num_groups: int = 1
    #: Groups with states: each has the blocks that states are read from and written to.
    num_state_groups: int = 0

    @cached_property
    def parts(self) -> dict[str, tuple[int, np.dtype[np.int64] | np.dtype[np.int32], int]]:
        """Offset in bytes, dtype and number of elements of each part, by name."""
        tokens, seqs = self.num_tokens, self.num_seqs
        sizes = (
            ("token_ids", _LONG, tokens),
            ("positions", _LONG, tokens),
            ("slots", _LONG, self.num_groups * tokens),
            # Row of the sequence whose last sampled token, still on the device, goes here; or -1.
            ("fed_rows", _LONG, tokens),
            # For sampled sequences: indexes in the batch of the tokens to choose from, and their
            # rows.
            ("logits_at", _LONG, tokens),
            ("sampled_rows", _LONG, seqs),
            ("query_start_loc", _INT, seqs + 1),
            ("seq_lens", _INT, seqs),
            ("states", _INT, self.num_state_groups * seqs * 2),
            ("block_tables", _INT, self.num_groups * seqs * self.table_width),
        )
        parts, offset = {}, 0
        for name, dtype, num in sizes:
            parts[name] = (offset, dtype, num)
            offset += -(-num * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return parts

    @cached_property
    def num_bytes(self) -> int:
        """Number of bytes of all parts."""
        offset, dtype, num = self.parts["block_tables"]
        return offset + num * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step's numbers on the host, to be written through `arrays`."""

    layout: BatchLayout
    arrays: Mapping[str, NDArray[np.int64] | NDArray[np.int32]]
    #: The tensors on the device after `upload`; the same memory if the device is the host.
    tensors: Mapping[str, torch.Tensor]
    #: Of these, each group's block tables and slots.
    by_group: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    buffer: int


class StepBuffers(Protocol):
    """Buffers in which steps are packed. One thread."""

    @property
    def keeps_steps(self) -> bool:
        """Whether a step stays as it was written, and may be changed in place, until `take`."""
        ...

    def take(self, layout: BatchLayout) -> PackedStep:
        """Return memory for a step; the last upload from it has arrived."""
        ...

    def upload(self, packed: PackedStep) -> Mapping[str, torch.Tensor]:
        """Return the step on the device, in the order of the device's current stream."""
        ...


class HostStepBuffers:
    """For a model on the host: it reads the written memory itself.

    The next step overwrites a step; it begins after the model is done with that one.
    """

    keeps_steps = True

    def __init__(self, num_bytes: int) -> None:
        self._bytes = torch.zeros(num_bytes, dtype=torch.uint8)
        self._views = _Views(self._bytes, self._bytes, 0)

    def take(self, layout: BatchLayout) -> PackedStep:
        """See `StepBuffers.take`."""
        return self._views.of(layout)

    def upload(self, packed: PackedStep) -> Mapping[str, torch.Tensor]:
        """See `StepBuffers.upload`."""
        return packed.tensors


class StagedStepBuffers:
    """Two buffers on the host, used in turn, and one on the device at a fixed address.

    The device's buffer is overwritten in stream order, so a running step is not disturbed. On a
    device of type cpu it copies too: that is how tests run this path.
    """

    keeps_steps = False

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._hosts = [
            torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(2)
        ]
        self._views = [_Views(host, self._device, i) for i, host in enumerate(self._hosts)]
        #: Recorded after the last copy from each host buffer.
        self._copied = [torch.cuda.Event() for _ in self._hosts] if is_cuda else []
        self._next = 0

    def take(self, layout: BatchLayout) -> PackedStep:
        """See `StepBuffers.take`."""
        place, self._next = self._next, 1 - self._next
        if self._copied:
            self._copied[place].synchronize()
        return self._views[place].of(layout)

    def upload(self, packed: PackedStep) -> Mapping[str, torch.Tensor]:
        """See `StepBuffers.upload`."""
        num_bytes = packed.layout.num_bytes
        host = self._hosts[packed.buffer]
        self._device[:num_bytes].copy_(host[:num_bytes], non_blocking=True)
        if self._copied:
            self._copied[packed.buffer].record()
        return packed.tensors


class _Views:
    """Views of one host buffer and its device buffer, by layout."""

    def __init__(self, host: torch.Tensor, device: torch.Tensor, buffer: int) -> None:
        self._host = host.numpy()
        self._device = device
        self._buffer = buffer
        self._known: OrderedDict[BatchLayout, PackedStep] = OrderedDict()

    def of(self, layout: BatchLayout) -> PackedStep:
        """Return the views for `layout`.

        Raises:
            InternalError: it does not fit.
        """
        packed = self._known.get(layout)
        if packed is None:
            packed = self._known[layout] = self._make(layout)
            if len(self._known) > _NUM_REMEMBERED:
                self._known.popitem(last=False)
        return packed

    def _make(self, layout: BatchLayout) -> PackedStep:
        if layout.num_bytes > len(self._host):
            raise InternalError(f"a step of {layout.num_bytes} bytes in {len(self._host)}")
        arrays, tensors = {}, {}
        for name, (offset, dtype, num) in layout.parts.items():
            here = slice(offset, offset + num * dtype.itemsize)
            arrays[name] = self._host[here].view(dtype)
            torch_dtype = torch.int64 if dtype.itemsize == 8 else torch.int32
            tensors[name] = self._device[here].view(torch_dtype)
        tables = (layout.num_groups, layout.num_seqs, layout.table_width)
        states = (layout.num_state_groups, layout.num_seqs, 2)
        for name, shape in (
            ("block_tables", tables),
            ("states", states),
            ("slots", (layout.num_groups, layout.num_tokens)),
        ):
            if layout.num_tokens:  # a size of 0 leaves none to derive
                tensors[name] = tensors[name].view(shape)
                arrays[name] = arrays[name].reshape(shape)
        by_group = tuple(zip(tensors["block_tables"], tensors["slots"], strict=True))
        return PackedStep(layout, arrays, tensors, by_group, self._buffer)


def step_buffers(num_bytes: int, device: torch.device) -> StepBuffers:
    """Return the kind of buffers for the device."""
    if device.type == "cpu":
        return HostStepBuffers(num_bytes)
    return StagedStepBuffers(num_bytes, device)
