"""The collective operations of devices, on groups of threads and of PyTorch that stand in."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch
from torch._C._distributed_c10d import FakeProcessGroup

from shared.errors import RankError
from shared.ranks import nccl_group
from shared.ranks.nccl_group import NcclCollective
from tests.fakes.ranks.devices import DeviceMeeting
from tests.fakes.ranks.groups import as_threads
from tests.suites.ranks.collective import SumSuite

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import Collective
    from tests.suites.ranks.collective import Ranks

T = TypeVar("T")
CPU = torch.device("cpu")


class NcclThreads:
    def run(self, size: int, body: Callable[[Collective], T]) -> list[T]:
        meeting = DeviceMeeting(size)
        groups = [NcclCollective(meeting.group(rank), rank, size, CPU) for rank in range(size)]
        try:
            return as_threads([partial(body, group) for group in groups])
        finally:
            for group in groups:
                group.close()


class TestNccl(SumSuite):
    @pytest.fixture
    def ranks(self) -> Ranks:
        return NcclThreads()


def test_a_group_of_pytorch_takes_the_calls() -> None:
    """One that returns at once: types, shapes and what is waited for are all that it can show."""
    group = NcclCollective(FakeProcessGroup._create_internal(1, 4), 1, 4, CPU)
    tensor = torch.ones(3, 5, dtype=torch.bfloat16)
    group.all_reduce(tensor)
    group.all_reduce(tensor[:, 1:3])
    group.broadcast(tensor, 2)
    group.barrier()
    gathered = group.all_gather(tensor, 0)
    assert gathered.shape == (12, 5)
    assert gathered.dtype is torch.bfloat16
    group.close()
    group.close()
    with pytest.raises(RankError, match="rank 1 has left"):
        group.barrier()


def test_what_waits_for_a_lost_rank_is_ended_from_another_thread() -> None:
    meeting = DeviceMeeting(2)
    group = NcclCollective(meeting.group(0), 0, 2, CPU)
    reason = RankError("rank 1 is late", rank=1)
    threading.Timer(0.05, group.abort, [reason]).start()
    for _ in range(2):
        with pytest.raises(RankError, match="rank 1 is late") as caught:
            group.all_reduce(torch.ones(3))
        assert caught.value.rank == 1
    group.abort(RankError("rank 0 is late", rank=0))
    with pytest.raises(RankError, match="rank 1 is late"):
        group.all_gather(torch.ones(3))
    group.close()


def test_an_operation_that_fails_breaks_the_group() -> None:
    class Failing:
        is_aborted = False

        def allreduce(self, *_: object) -> None:
            raise RuntimeError("unhandled cuda error")

        def abort(self) -> None:
            self.is_aborted = True

    failing = Failing()
    group = NcclCollective(failing, 1, 2, CPU)
    for _ in range(2):
        with pytest.raises(RankError, match="all_reduce of rank 1 failed on cpu: unhandled cuda"):
            group.all_reduce(torch.ones(3))
    group.close()
    assert failing.is_aborted


def test_the_end_of_a_group_does_not_wait_for_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits for those that refer to it, which may be as long as the process lives."""
    monkeypatch.setattr(nccl_group, "_END_S", 0.05)
    ended = threading.Event()

    class Referred:
        def abort(self) -> None:
            ended.wait(30)

    start = time.monotonic()
    NcclCollective(Referred(), 0, 2, CPU).close()
    assert time.monotonic() - start < 10
    ended.set()
