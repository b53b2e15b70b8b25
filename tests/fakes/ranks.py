"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

from shared.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

T = TypeVar("T")
_PATIENCE_S = 60.0


class _Meeting:
    """Where threads leave tensors for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=_PATIENCE_S)
        self.tensors: list[Tensor] = [torch.empty(0)] * size


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
        for own in self._meet(tensor):
            total += own
        self._meeting.barrier.wait()
        tensor.copy_(total)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        found = torch.cat(self._meet(tensor), dim)
        self._meeting.barrier.wait()
        return found

    def broadcast(self, tensor: Tensor, source: int) -> None:
        own = self._meet(tensor)[source].clone()
        self._meeting.barrier.wait()
        tensor.copy_(own)

    def barrier(self) -> None:
        self._meeting.barrier.wait()

    def close(self) -> None:
        self._meeting.barrier.abort()

    def _meet(self, tensor: Tensor) -> list[Tensor]:
        self.num_calls += 1
        self._meeting.tensors[self.rank] = tensor
        self._meeting.barrier.wait()
        return list(self._meeting.tensors)


def run_ranks(
    size: int, work: Callable[[ThreadCollective], T], *, num_stages: int = 1
) -> list[T]:
    """Return what each rank's thread returns; of several stages, of `size` ranks each.

    Collective operations are among the ranks of a stage.
    """
    meetings = [_Meeting(size) for _ in range(num_stages)]

    def run(number: int) -> T:
        stage, rank = divmod(number, size)
        collective = ThreadCollective(meetings[stage], rank, size, stage)
        try:
            with torch.inference_mode():
                return work(collective)
        except BaseException:
            collective.close()
            raise

    num_ranks = size * num_stages
    with ThreadPoolExecutor(num_ranks) as threads:
        futures = [threads.submit(run, number) for number in range(num_ranks)]
    errors = [e for future in futures if (e := future.exception()) is not None]
    if errors:
        raise min(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError | RankError))
    return [future.result() for future in futures]
