"""Collective operations by torch.distributed, on gloo."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch
import torch.distributed as dist

from shared.errors import RankError
from shared.ranks.torch_group import TorchCollective, gloo_collective
from tests.fakes.ranks.groups import as_threads, copies
from tests.suites.ranks.collective import LossSuite, SumSuite, numbers, ordered_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from pathlib import Path

    from shared.ranks.base import Collective
    from tests.suites.ranks.collective import Ranks

T = TypeVar("T")
HOST = "127.0.0.1"


class GlooThreads:
    """Groups of threads of this process; one of each size serves all that break nothing."""

    def __init__(self, timeout_s: float, *, is_kept: bool) -> None:
        self._timeout_s = timeout_s
        self._is_kept = is_kept
        self._groups: dict[int, list[Collective]] = {}

    def run(self, size: int, body: Callable[[Collective], T]) -> list[T]:
        groups = self._groups.get(size) or self._make(size)
        if self._is_kept:
            self._groups[size] = groups
        try:
            return as_threads([partial(body, group) for group in groups])
        finally:
            if not self._is_kept:
                self._close(groups)

    def close(self) -> None:
        for groups in self._groups.values():
            self._close(groups)

    def _make(self, size: int) -> list[Collective]:
        store = dist.HashStore()
        join = partial(gloo_collective, host=HOST, timeout_s=self._timeout_s)
        return as_threads([partial(join, store, rank, size) for rank in range(size)])

    @staticmethod
    def _close(groups: list[Collective]) -> None:
        for group in groups:
            group.close()


# First: a copy is best made while no threads of gloo are there.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_lost_is_named(number: signal.Signals, tmp_path: Path) -> None:
    def join(rank: int) -> Collective:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = gloo_collective(store, rank, 2, host=HOST, timeout_s=3.0)
        group.barrier()
        return group

    def add_up(group: Collective) -> None:
        while True:
            group.all_reduce(torch.ones(3))

    with copies(lambda: add_up(join(1))) as (one,):
        group = join(0)
        group.all_reduce(torch.ones(3))
        one.send(number)
        with pytest.raises(RankError, match="rank 1 died or does not answer") as caught:
            add_up(group)
        assert caught.value.rank == 1
        with pytest.raises(RankError, match="rank 1"):
            group.barrier()


@pytest.fixture(scope="module")
def kept() -> Iterator[GlooThreads]:
    threads = GlooThreads(30.0, is_kept=True)
    yield threads
    threads.close()


class TestGloo(SumSuite):
    @pytest.fixture
    def ranks(self, kept: GlooThreads) -> Ranks:
        return kept

    def test_large_sums_are_cut_among_the_ranks(self, ranks: Ranks) -> None:
        shape = (40_001,)

        def body(group: Collective) -> torch.Tensor:
            tensor = numbers(group.rank, shape, torch.bfloat16)
            group.all_reduce(tensor)
            return tensor

        total = ordered_sum(3, shape, torch.bfloat16)
        assert all(torch.equal(got, total) for got in ranks.run(3, body))


class TestLossOnGloo(LossSuite):
    @pytest.fixture
    def ranks(self) -> Ranks:
        return GlooThreads(3.0, is_kept=False)


def test_a_group_without_its_other_rank_is_not_made() -> None:
    with pytest.raises(RankError, match="rank 0 of 2 found no group"):
        gloo_collective(dist.HashStore(), 0, 2, host=HOST, timeout_s=0.1)


def test_the_store_tells_of_rank_0() -> None:
    class Silent(dist.Store):
        def set(self, key: str, value: str) -> None:
            raise dist.DistNetworkError("no answer")

        def set_timeout(self, timeout: timedelta) -> None: ...

    class Failing:
        def barrier(self) -> None:
            raise RuntimeError("connection reset")

    group = TorchCollective(Failing(), Silent(), 1, 2, timeout_s=0.1)
    with pytest.raises(RankError, match="rank 0 died or does not answer") as caught:
        group.barrier()
    assert caught.value.rank == 0
