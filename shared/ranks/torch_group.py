"""Collective operations between hosts' CPUs, by gloo through torch.distributed.

gloo only moves bytes here; sums are made by each rank in the order of ranks, so they have the bits
of `shared_memory`. The default group of torch.distributed is neither needed nor touched.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from shared.errors import RankError
from shared.ranks.checks import require_source, require_summed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shared.ranks.base import Collective

TIMEOUT_S = 30.0
#: Sums up to this size take one exchange of all numbers; larger ones two, of less.
ONE_SHOT_BYTES = 64 << 10
#: The share of the time-out for an operation. Then ranks have the rest to say that they live.
_OPERATION_SHARE = 1 / 3
_ROLL_CALL_STEP_S = 0.02


def gloo_collective(
    store: c10d.Store,
    rank: int,
    size: int,
    *,
    host: str,
    timeout_s: float = TIMEOUT_S,
    names: Sequence[int] | None = None,
) -> Collective:
    """Join a group of CPUs. Waits until all ranks have.

    `store` is shared by the ranks and best hosted by rank 0; `host` is an address of this rank that
    the others reach. names: by rank, the number that errors give it; None: its own.

    Raises:
        RankError: a rank did not come.
    """
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s * _OPERATION_SHARE)
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=host)]
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        group = c10d.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise RankError(f"rank {rank} of {size} found no group: {error}") from error
    return TorchCollective(group, store, rank, size, timeout_s=timeout_s, names=names)


class TorchCollective:
    """A `Collective` of a process group of torch.distributed.

    After an error a roll call over the store finds who is
    missing: each rank says there that it lives, and one that says nothing within the time-out, or
    has said that it left, is named. If the store is silent, that is rank 0.
    """

    def __init__(
        self,
        group: Any,
        store: c10d.Store,
        rank: int,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        names: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._names = range(size) if names is None else names
        self._group = group
        self._store = store
        self._timeout_s = timeout_s
        self._error: RankError | None = None

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collective`, and the order of sums above."""
        require_summed(tensor)
        if tensor.nbytes <= ONE_SHOT_BYTES:
            flat = _sum(self._gathered("all_reduce", tensor.reshape(-1)))
        else:
            flat = self._sum_of_pieces(tensor.reshape(-1))
        tensor.copy_(flat.view(tensor.shape))

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """See `Collective`."""
        parts = self._gathered("all_gather", tensor.reshape(-1))
        return torch.cat([part.view(tensor.shape) for part in parts], dim)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Collective`."""
        require_source(source, self.size)
        flat = tensor.contiguous()
        options = c10d.BroadcastOptions()
        options.rootRank = source
        if tensor.numel():
            raw = [_bytes_of(flat)]
            self._do("broadcast", lambda group: group.broadcast(raw, options))
        if flat is not tensor:
            tensor.copy_(flat)

    def barrier(self) -> None:
        """See `Collective`."""
        self._do("barrier", lambda group: group.barrier())

    def close(self) -> None:
        """See `Collective`."""
        if self._group is None:
            return
        if self._error is None:
            own = self._names[self.rank]
            self._error = RankError(f"rank {own} has left the group", rank=own)
            with suppress(RuntimeError):
                self._store.set(_key(self.rank), "left")
        self._end_group()

    def _gathered(self, act: str, flat: Tensor) -> Tensor:
        """Return the ranks' flat tensors as rows."""
        rows = flat.new_empty((self.size, flat.numel()))
        if flat.numel():
            raw, out = _bytes_of(flat.contiguous()), _bytes_of(rows)
            self._do(act, lambda group: group._allgather_base(out, raw))
        return rows

    def _sum_of_pieces(self, flat: Tensor) -> Tensor:
        """Return a sum of which every rank makes a piece."""
        length = -(-flat.numel() // self.size)
        padded = flat.new_zeros(self.size * length)
        padded[: flat.numel()] = flat
        theirs = torch.empty_like(padded)
        raw, out = _bytes_of(padded), _bytes_of(theirs)
        self._do("all_reduce", lambda group: group.alltoall_base(out, raw, [], []))
        piece = _sum(theirs.view(self.size, length))
        return self._gathered("all_reduce", piece).view(-1)[: flat.numel()]

    def _do(self, act: str, start: Callable[[Any], Any]) -> None:
        """Run an operation of the group to its end."""
        if self._error is not None:
            raise self._error
        try:
            start(self._group).wait()
        except RuntimeError as error:
            self._error = self._roll_call(act, error)
            self._end_group()
            raise self._error from error

    def _roll_call(self, act: str, error: RuntimeError) -> RankError:
        said = dict.fromkeys(range(self.size), "")
        until = time.monotonic() + self._timeout_s * (1 - _OPERATION_SHARE)
        try:
            self._store.set_timeout(timedelta(seconds=self._timeout_s * _OPERATION_SHARE))
            self._store.set(_key(self.rank), "lives")
            while time.monotonic() < until and not all(said.values()):
                for rank in (rank for rank, words in said.items() if not words):
                    if self._store.check([_key(rank)]):
                        said[rank] = self._store.get(_key(rank)).decode()
                time.sleep(_ROLL_CALL_STEP_S)
        except RuntimeError:
            said[0] = ""
            return self._lost(0, act, "died or does not answer", error)
        for words, what in (("left", "left the group"), ("", "died or does not answer")):
            for rank in (rank for rank, other in said.items() if other == words):
                return self._lost(rank, act, what, error)
        own = self._names[self.rank]
        return RankError(f"{act} of rank {own} failed, and all ranks live: {error}")

    def _lost(self, rank: int, act: str, what: str, error: RuntimeError) -> RankError:
        name, own = self._names[rank], self._names[self.rank]
        return RankError(
            f"rank {name} {what}: rank {own} waited for it in {act} ({error})", rank=name
        )

    def _end_group(self) -> None:
        """Close connections, so that the others need not wait for their time-out."""
        group, self._group = self._group, None
        with suppress(AttributeError, RuntimeError):
            group.abort()


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor. One of a single number may have any stride."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _sum(rows: Tensor) -> Tensor:
    """Return the sum of rows, first row first, in float32 and rounded once."""
    total = rows[0].float() if rows.dtype is not torch.float32 else rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.to(rows.dtype)


def _key(rank: int) -> str:
    return f"roll-call/{rank}"
