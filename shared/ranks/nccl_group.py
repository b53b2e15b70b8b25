"""Collective operations of GPUs, by NCCL through torch.distributed.

**No test has run this on a device.** What a CPU can show was shown on groups that stand in for
NCCL's.

NCCL adds up in an order of its own choice, which is the same for each call of one shape on one set
of devices, and rounds bfloat16 and float16 at every addition. Its results are the same on all
ranks, but neither those of the other implementations nor ordered by rank.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from shared.errors import RankError
from shared.ranks.checks import require_source, require_summed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.ranks.base import DeviceCollective

#: Of PyTorch's own watch over NCCL, which ends the process.
_NEVER = timedelta(days=365)
#: NCCL ends a group when no recording refers to it any more, and waits for that without a limit.
_END_S = 5.0


def nccl_collective(
    store: c10d.Store, rank: int, size: int, device: torch.device, *, timeout_s: float
) -> DeviceCollective:
    """Join a group of GPUs; return when all have. The device becomes this thread's current one.

    `store` is shared by the ranks. NCCL has no time-out once its ranks have found each other: a
    rank that dies in here is waited for.

    Raises:
        RankError: a rank did not come.
    """
    torch.cuda.set_device(device)
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = _NEVER
    store.set_timeout(timedelta(seconds=timeout_s))
    group = c10d.ProcessGroupNCCL(store, rank, size, options)
    found = NcclCollective(group, rank, size, device)
    # The first operation connects the devices, which no recording may contain.
    found.barrier()
    return found


class NcclCollective:
    """A `DeviceCollective` of a process group of torch.distributed that adds up by itself."""

    def __init__(self, group: Any, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._device = device
        self._error: RankError | None = None
        self._ending: threading.Thread | None = None

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collective`, and the order of sums above."""
        require_summed(tensor)
        flat = tensor.contiguous()
        options = _here(c10d.AllreduceOptions())
        self._do("all_reduce", flat, lambda group: group.allreduce([flat], options))
        if flat is not tensor:
            tensor.copy_(flat)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """See `Collective`."""
        flat = tensor.contiguous()
        rows = flat.new_empty((self.size, *flat.shape))
        options = _here(c10d.AllgatherOptions())
        self._do("all_gather", flat, lambda group: group._allgather_base(rows, flat, options))
        return torch.cat(rows.unbind(), dim)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Collective`."""
        require_source(source, self.size)
        flat = tensor.contiguous()
        options = _here(c10d.BroadcastOptions())
        options.rootRank = source
        self._do("broadcast", flat, lambda group: group.broadcast([flat], options))
        if flat is not tensor:
            tensor.copy_(flat)

    def barrier(self) -> None:
        """See `Collective`. Waits for the device, so no recording may contain it."""
        one = torch.ones(1, device=self._device)
        self.all_reduce(one)
        one.item()

    def abort(self, reason: RankError) -> None:
        """See `DeviceCollective`."""
        self._end(reason)

    def close(self) -> None:
        """See `Collective`."""
        self._end(RankError(f"rank {self.rank} has left the group", rank=self.rank))
        if self._ending is not None:
            self._ending.join(_END_S)

    def _end(self, reason: RankError) -> RankError:
        """End the group; return the first reason."""
        # In this order: `_do` reads them in the other one.
        self._error = first = self._error or reason
        group, self._group = self._group, None
        if group is not None:
            self._ending = threading.Thread(target=group.abort, name="end-nccl", daemon=True)
            self._ending.start()
        return first

    def _do(self, act: str, tensor: Tensor, start: Callable[[Any], Any]) -> None:
        """Put an operation into the current stream."""
        group = self._group
        if self._error is not None:
            raise self._error
        if not tensor.numel():
            return
        try:
            work = start(group)
            if work is not None:  # PyTorch before 2.8
                work.wait()
        except RuntimeError as error:
            reason = f"{act} of rank {self.rank} failed on {tensor.device}: {error}"
            raise self._end(RankError(reason)) from error


def _here(options: Any) -> Any:
    """Have an operation run in the current stream: its place in a recording is its place there."""
    options.asyncOp = False
    return options
