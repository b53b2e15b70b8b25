"""Collective operations between threads, and of a rank alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
import torch

from shared.errors import ConfigError, RankError
from shared.ranks.alone import Alone
from shared.ranks.measure import measure_sums
from shared.ranks.shared_memory import SharedMemoryCollective, collective_file
from tests.fakes.ranks.groups import as_threads
from tests.fakes.ranks.shared_memory import BUFFER_BYTES, SharedMemoryRanks, small_buffers
from tests.suites.ranks.collective import LossSuite, SumSuite, numbers, ordered_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import Collective
    from tests.suites.ranks.collective import Ranks

T = TypeVar("T")


class TestSharedMemory(SumSuite):
    sizes = (1, 2, 3, 4)

    @pytest.fixture
    def ranks(self) -> Ranks:
        return SharedMemoryRanks(as_threads)


class TestLossInSharedMemory(LossSuite):
    @pytest.fixture
    def ranks(self) -> Ranks:
        return SharedMemoryRanks(as_threads, timeout_s=1.0)


class TestAlone(SumSuite):
    sizes = (1,)

    @pytest.fixture
    def ranks(self) -> Ranks:
        class One:
            def run(self, size: int, body: Callable[[Collective], T]) -> list[T]:
                assert size == 1
                return [body(Alone())]

        return One()


def test_large_tensors_of_the_usual_buffers() -> None:
    file = collective_file(2)
    shape = (1_000_003,)

    def live(rank: int) -> bool:
        group = SharedMemoryCollective(file.fd, rank, 2, timeout_s=20.0)
        tensor = numbers(rank, shape, torch.float32)
        group.all_reduce(tensor)
        gathered = group.all_gather(tensor)
        group.close()
        return torch.equal(tensor, ordered_sum(2, shape, torch.float32)) and torch.equal(
            gathered, tensor.repeat(2)
        )

    assert as_threads([lambda: live(0), lambda: live(1)]) == [True, True]


def test_sums_may_overflow_and_be_no_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    mine = [[65504.0, inf, nan, -0.0, 1e-7], [65504.0, -inf, 1.0, -0.0, 1e-7]]

    def body(group: Collective) -> torch.Tensor:
        tensor = torch.tensor(mine[group.rank], dtype=torch.float16)
        group.all_reduce(tensor)
        return tensor

    for got in SharedMemoryRanks(as_threads).run(2, body):
        wanted = torch.tensor(mine[0]).half().float() + torch.tensor(mine[1]).half().float()
        assert torch.equal(got.isnan(), wanted.isnan())
        assert torch.equal(got.nan_to_num(7.0), wanted.half().nan_to_num(7.0))
        assert torch.signbit(got[3])


@pytest.mark.parametrize(
    ("other", "name", "terms"),
    [
        (lambda group: group.barrier(), "barrier", ""),
        (lambda group: group.all_reduce(torch.ones(9)), "all_reduce", " of another size or kind"),
        (lambda group: group.all_reduce(torch.ones(8).half()), "all_reduce", " of another size"),
    ],
)
def test_a_rank_in_another_operation_is_named(
    other: Callable[[Collective], None], name: str, terms: str
) -> None:
    """Either rank may find it; both learn the same."""

    def first(group: Collective) -> None:
        group.all_reduce(torch.ones(8, dtype=torch.bfloat16))

    def body(group: Collective) -> str:
        act = other if group.rank else first
        with pytest.raises(RankError) as caught:
            act(group)
        return str(caught.value)

    zero, one = SharedMemoryRanks(as_threads).run(2, body)
    assert zero == one
    assert (f"rank 1 is in {name}{terms}" in zero and "rank 0 is in all_reduce" in zero) or (
        f"rank 0 is in all_reduce{terms}" in zero and f"rank 1 is in {name}" in zero
    )


def test_sums_are_timed_by_size() -> None:
    ranks = SharedMemoryRanks(as_threads)
    for times in ranks.run(2, lambda group: measure_sums(group, (1 << 10,))):
        (time,) = times
        assert time.num_bytes == 1 << 10
        assert time.bytes_per_s == time.num_bytes / time.seconds > 0


def test_a_rank_that_never_joins_is_named() -> None:
    file = collective_file(2, BUFFER_BYTES)
    group = small_buffers(file, 0, 2, 0.05)
    with pytest.raises(RankError, match=r"rank 1 did not join the group within 0\.05 s") as caught:
        group.barrier()
    assert caught.value.rank == 1
    late = small_buffers(file, 1, 2, 0.05)
    with pytest.raises(RankError, match="rank 1 did not join"):
        late.barrier()
    for each in (group, late, file):
        each.close()


def test_a_rank_is_joined_once() -> None:
    file = collective_file(2, BUFFER_BYTES)
    group = small_buffers(file, 0, 2, 1.0)
    for _ in range(2):
        with pytest.raises(ConfigError, match="another process or thread is this rank"):
            small_buffers(file, 0, 2, 1.0)
        group.close()
    file.close()


def test_groups_of_other_sizes_are_refused() -> None:
    file = collective_file(2, BUFFER_BYTES)
    with pytest.raises(ConfigError, match="the same settings"):
        small_buffers(file, 0, 3, 1.0)
    with pytest.raises(ConfigError, match="the same settings"):
        SharedMemoryCollective(file.fd, 0, 2)
    with pytest.raises(ConfigError, match="rank 2 is none of a group of 2"):
        small_buffers(file, 2, 2, 1.0)
    with pytest.raises(ConfigError, match="1 to 64 ranks, not 65"):
        collective_file(65)
    with pytest.raises(ConfigError, match="multiple of 128"):
        collective_file(2, 100)
    file.close()
