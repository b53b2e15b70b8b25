"""Ranks that are processes: the same operations, and what the others learn of one that is lost."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.errors import RankError
from shared.ranks.plan_ring import PlanRingReceiver, PlanRingSender, ring_file
from shared.ranks.shared_memory import collective_file
from tests.fakes.ranks.groups import as_processes, copies
from tests.fakes.ranks.shared_memory import BUFFER_BYTES, SharedMemoryRanks, small_buffers
from tests.suites.ranks.collective import SumSuite
from tests.suites.ranks.plan_channel import receive_on, send_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.ranks.base import Collective
    from tests.suites.ranks.collective import Ranks

#: A rank may be kept from its core by other tests.
TIMEOUT_S = 2.0
LOSSES = [
    (signal.SIGKILL, "the process of rank 1 died"),
    (signal.SIGSTOP, "rank 1 did not come within 2 s"),
]


class TestProcesses(SumSuite):
    sizes = (2, 3)

    @pytest.fixture
    def ranks(self) -> Ranks:
        return SharedMemoryRanks(as_processes)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Neither open files nor names of shared memory."""
    before = _left()
    yield
    assert _left() == before


def _left() -> list[str]:
    descriptors = (os.path.realpath(fd.path) for fd in os.scandir("/proc/self/fd"))
    names = (each.name for each in Path("/dev/shm").iterdir())
    found = (name for name in (*descriptors, *names) if "baton" in name)
    # Those are of workers of other tests.
    return sorted(name for name in found if "baton-cores-" not in name)


def reduce_on(group: Collective) -> None:
    """Add up until something raises."""
    tensor = torch.ones(3000)
    while True:
        group.all_reduce(tensor)


def what_breaks(group: Collective) -> tuple[str, int | None]:
    """Return the error that ends a rank's sums; later calls raise the same."""
    with pytest.raises(RankError) as caught:
        reduce_on(group)
    with pytest.raises(RankError, match=re.escape(str(caught.value))):
        group.barrier()
    return str(caught.value), caught.value.rank


@pytest.mark.parametrize(("number", "words"), LOSSES)
def test_a_rank_that_is_lost_amid_sums_is_named_by_all_others(
    number: signal.Signals, words: str
) -> None:
    file = collective_file(3, BUFFER_BYTES)

    def other(rank: int) -> Any:
        group = small_buffers(file, rank, 3, TIMEOUT_S)
        group.barrier()
        return what_breaks(group)

    with copies(lambda: other(1), lambda: other(2)) as (one, two):
        group = small_buffers(file, 0, 3, TIMEOUT_S)
        group.barrier()
        for _ in range(20):
            group.all_reduce(torch.ones(3000))
        one.send(number)
        mine, rank = what_breaks(group)
        assert words in mine
        assert rank == 1
        assert two.result() == (mine, 1)
        if number is signal.SIGSTOP:
            one.send(signal.SIGCONT)
            assert one.result() == (mine, 1)
    group.close()
    file.close()


@pytest.mark.parametrize(("number", "words"), LOSSES)
def test_a_follower_that_is_lost_is_named(number: signal.Signals, words: str) -> None:
    file = ring_file(3)

    def follow(rank: int) -> str:
        with pytest.raises(RankError) as caught:
            receive_on(PlanRingReceiver(file.fd, rank, 3, timeout_s=TIMEOUT_S))
        return str(caught.value)

    with copies(lambda: follow(1), lambda: follow(2)) as (one, two):
        sender = PlanRingSender(file.fd, 3, timeout_s=TIMEOUT_S, spin_s=0.0)
        sender.send(b"first")
        sender.drain()
        one.send(number)
        with pytest.raises(RankError, match=words) as caught:
            send_on(sender)
        assert caught.value.rank == 1
        assert two.result() == str(caught.value)
    sender.close()
    file.close()


def test_followers_learn_that_rank_0_was_killed() -> None:
    file = ring_file(2)

    def lead() -> None:
        sender = PlanRingSender(file.fd, 2)
        sender.send(b"first")
        signal.pause()

    with copies(lead) as (zero,):
        receiver = PlanRingReceiver(file.fd, 1, 2, timeout_s=TIMEOUT_S)
        assert receiver.receive() == b"first"
        zero.send(signal.SIGKILL)
        with pytest.raises(RankError, match="the process of rank 0 died") as caught:
            receiver.receive()
        assert caught.value.rank == 0
    receiver.close()
    file.close()
