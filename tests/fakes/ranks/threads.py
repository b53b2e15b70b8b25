"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from shared.errors import RankError
from shared.ranks.alone import Alone
from shared.ranks.shared_memory import SharedMemoryCollective, collective_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.ranks.base import Collective

T = TypeVar("T")
C = TypeVar("C", bound="Collective")
#: Small ones, so that logits go through them in pieces.
_BUFFER_BYTES = 4 << 10
_PATIENCE_S = 60.0


class _Meeting:
    """Where threads leave tensors for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=_PATIENCE_S)
        self.tensors: list[Tensor] = [torch.empty(0)] * size
        self.acts = [""] * size


class ThreadCollective:
    """See `Collective`: of one of several threads."""

    def __init__(self, meeting: _Meeting, rank: int, size: int, stage: int = 0) -> None:
        self.rank, self.size, self.stage = rank, size, stage
        self.num_calls = 0
        self._meeting = meeting

    @classmethod
    def alone(cls, rank: int, size: int) -> ThreadCollective:
        """One of several ranks, of which the others never come."""
        return cls(_Meeting(size), rank, size)

    def all_reduce(self, tensor: Tensor) -> None:
        total = torch.zeros_like(tensor, dtype=torch.float32)
        for own in self._meet("all_reduce", tensor):
            total += own
        self._meeting.barrier.wait()
        tensor.copy_(total)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        found = torch.cat(self._meet("all_gather", tensor), dim)
        self._meeting.barrier.wait()
        return found

    def broadcast(self, tensor: Tensor, source: int) -> None:
        own = self._meet("broadcast", tensor)[source].clone()
        self._meeting.barrier.wait()
        tensor.copy_(own)

    def barrier(self) -> None:
        self._meeting.barrier.wait()

    def close(self) -> None:
        self._meeting.barrier.abort()

    def _meet(self, act: str, tensor: Tensor) -> list[Tensor]:
        """Leave a tensor; return those of all, which are in the same operation."""
        self.num_calls += 1
        meeting = self._meeting
        meeting.tensors[self.rank] = tensor
        meeting.acts[self.rank] = f"{act} of {tuple(tensor.shape)} {tensor.dtype}"
        meeting.barrier.wait()
        assert len(set(meeting.acts)) == 1, meeting.acts
        return list(meeting.tensors)


def run_ranks(size: int, work: Callable[[ThreadCollective], T], *, num_stages: int = 1) -> list[T]:
    """Return what each rank's thread returns; of several stages, of `size` ranks each.

    Collective operations are among the ranks of a stage.
    """
    meetings = [_Meeting(size) for _ in range(num_stages)]

    def join(number: int) -> ThreadCollective:
        stage, rank = divmod(number, size)
        return ThreadCollective(meetings[stage], rank, size, stage)

    return _run(size * num_stages, join, work)


class NativeRank(SharedMemoryCollective):
    """One of several ranks of a stage."""

    stage = 0


class LoneRank(Alone):
    """All of a stage."""

    stage = 0


def run_native_ranks(size: int, work: Callable[[Any], T], *, num_stages: int = 1) -> list[T]:
    """The same, with the collective operations of native code."""
    files = [collective_file(size, _BUFFER_BYTES) for _ in range(num_stages)]

    def join(number: int) -> NativeRank | LoneRank:
        stage, rank = divmod(number, size)
        fd, limits = files[stage].fd, {"timeout_s": _PATIENCE_S, "buffer_bytes": _BUFFER_BYTES}
        own = LoneRank() if size == 1 else NativeRank(fd, rank, size, **limits)
        own.stage = stage
        return own

    try:
        return _run(size * num_stages, join, work)
    finally:
        for file in files:
            file.close()


def _run(size: int, join: Callable[[int], C], work: Callable[[C], T]) -> list[T]:
    def run(rank: int) -> T:
        collective = join(rank)
        try:
            with torch.inference_mode():
                return work(collective)
        except BaseException:
            collective.close()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [e for future in futures if (e := future.exception()) is not None]
    if errors:
        raise min(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError | RankError))
    return [future.result() for future in futures]


#: By attention backend: what runs its ranks.
RUN_BY: dict[str, Callable[..., list[Any]]] = {"torch": run_ranks, "native": run_native_ranks}
