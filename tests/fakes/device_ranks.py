"""What stands in for NCCL where there is no device: the process groups of threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_PATIENCE_S = 60.0


class DeviceMeeting:
    """Where the ranks of a group meet, and what they have done there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=_PATIENCE_S)
        self.tensors: list[Tensor] = [torch.empty(0)] * size
        #: By rank: operation, shape and dtype, in order.
        self.calls: list[list[tuple[str, tuple[int, ...], torch.dtype]]] = [[] for _ in range(size)]

    def group(self, rank: int) -> FakeNcclGroup:
        """A rank's process group."""
        return FakeNcclGroup(self, rank)


class FakeNcclGroup:
    """The part of `ProcessGroupNCCL` that is used, between threads.

    As there, an operation in the caller's stream returns nothing, and does not end before
    all ranks are in it, or `abort` is called.
    """

    def __init__(self, meeting: DeviceMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self.is_aborted = False

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> None:
        (tensor,) = tensors
        total = torch.zeros_like(tensor, dtype=torch.float32)
        for part in self._meet("all_reduce", tensor, options):
            total += part
        self._wait()
        tensor.copy_(total)

    def _allgather_base(self, out: Tensor, tensor: Tensor, options: Any) -> None:
        assert out.numel() == self._meeting.size * tensor.numel()
        parts = self._meet("all_gather", tensor, options)
        out.view(self._meeting.size, -1).copy_(torch.stack([part.flatten() for part in parts]))
        self._wait()

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> None:
        (tensor,) = tensors
        own = self._meet("broadcast", tensor, options)[options.rootRank].clone()
        self._wait()
        tensor.copy_(own)

    def abort(self) -> None:
        self.is_aborted = True
        self._meeting.barrier.abort()

    def _meet(self, act: str, tensor: Tensor, options: Any) -> list[Tensor]:
        assert not options.asyncOp, "an operation beside the caller's stream"
        assert tensor.is_contiguous()
        meeting = self._meeting
        meeting.calls[self._rank].append((act, tuple(tensor.shape), tensor.dtype))
        meeting.tensors[self._rank] = tensor
        self._wait()
        return list(meeting.tensors)

    def _wait(self) -> None:
        try:
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RuntimeError("NCCL communicator was aborted") from error
