"""Collective operations of ranks on one host, by the native library, through one shared mapping."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from kernels.native.library import load_library
from kernels.native.ranks import Summand
from kernels.native.structures import CollectiveShape
from shared.errors import ConfigError
from shared.ranks.base import MAX_RANKS
from shared.ranks.checks import require_source, require_summed
from shared.ranks.group_file import GroupFile
from shared.ranks.membership import TIMEOUT_S, Membership, default_spin_s

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from torch import Tensor

    from shared.errors import RankError

#: Two of these per rank. Larger tensors go through them in pieces. What is larger than a core's own
#: cache has left it when another core reads it, which is faster than to take it from there.
BUFFER_BYTES = 1 << 20
#: Of sums up to this size every rank adds up all; of larger ones a part.
ONE_SHOT_BYTES = 32 << 10
#: Peers that are waited for in a step compute: they may be late by a part of a layer, and a rank
#: that sleeps through that has to be woken, which may take longer.
SPIN_S = 5e-3

_SUMMANDS = {
    torch.float32: Summand.FLOAT32,
    torch.bfloat16: Summand.BFLOAT16,
    torch.float16: Summand.FLOAT16,
}


def collective_file(size: int, buffer_bytes: int = BUFFER_BYTES) -> GroupFile:
    """Return memory for the collective operations of `size` ranks."""
    num_bytes = load_library().baton_collective_bytes(_shape(size, buffer_bytes))
    return GroupFile(num_bytes, "baton-collective")


class SharedMemoryCollective:
    """A `NativeCollective` of processes or threads on one host; its ranks may be a mix of both.

    `fd` is that of a `collective_file` of the same size and buffers. Nothing is copied but into the
    shared buffers and out of them. Calls release the GIL. A rank whose process ends is found dead
    within a fifth of a second; one that is stopped is late. `names`: see `Membership`.

    Raises:
        ConfigError: see `Membership`.
    """

    def __init__(
        self,
        fd: int,
        rank: int,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        spin_s: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        names: Seq[int] | None = None,
    ) -> None:
        library = load_library()
        self._member = Membership(
            "collective",
            fd,
            rank,
            _shape(size, buffer_bytes),
            timeout_s=timeout_s,
            spin_s=default_spin_s(size, SPIN_S) if spin_s is None else spin_s,
            names=names,
        )
        self.rank = rank
        self.size = size
        self._all_reduce = library.baton_all_reduce
        self._all_gather = library.baton_all_gather
        self._broadcast = library.baton_broadcast
        self._barrier = library.baton_barrier

    @property
    def native(self) -> int:
        """See `NativeCollective`."""
        return self._member.handle()

    def error(self) -> RankError:
        """See `NativeCollective`."""
        return self._member.error()

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collective`."""
        kind = _SUMMANDS.get(tensor.dtype)
        if kind is None:
            require_summed(tensor)
        flat = _contiguous(tensor)
        handle = self._member.handle()
        if self._all_reduce(handle, flat.data_ptr(), flat.numel(), kind):
            raise self._member.error()
        if flat is not tensor:
            tensor.copy_(flat)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """See `Collective`."""
        flat = _contiguous(tensor)
        shape = list(tensor.shape)
        dim = range(len(shape))[dim]
        row_bytes = prod(shape[dim:]) * tensor.element_size()
        shape[dim] *= self.size
        out = torch.empty(shape, dtype=tensor.dtype)
        rows = prod(shape[:dim])
        handle = self._member.handle()
        if self._all_gather(handle, flat.data_ptr(), rows, row_bytes, out.data_ptr()):
            raise self._member.error()
        return out

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Collective`."""
        require_source(source, self.size)
        flat = _contiguous(tensor)
        if self._broadcast(self._member.handle(), flat.data_ptr(), flat.nbytes, source):
            raise self._member.error()
        if flat is not tensor:
            tensor.copy_(flat)

    def barrier(self) -> None:
        """See `Collective`."""
        if self._barrier(self._member.handle()):
            raise self._member.error()

    def close(self) -> None:
        """See `Collective`."""
        self._member.close()


def _contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a copy if its numbers do not lie in order."""
    if not tensor.is_cpu:
        raise ValueError(f"ranks of one host share tensors in its memory, not on {tensor.device}")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _shape(size: int, buffer_bytes: int) -> CollectiveShape:
    if not 1 <= size <= MAX_RANKS:
        raise ConfigError(f"a group has 1 to {MAX_RANKS} ranks, not {size}")
    if buffer_bytes <= 0 or buffer_bytes % 128:
        raise ConfigError(f"buffers are a multiple of 128 bytes, not {buffer_bytes}")
    return CollectiveShape(size, buffer_bytes, min(ONE_SHOT_BYTES, buffer_bytes))
