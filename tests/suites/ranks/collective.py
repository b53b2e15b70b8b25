"""How every implementation of `Collective` behaves towards those who use it."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.ranks.base import Collective

T = TypeVar("T")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
#: Fixtures make no group: each example has its own.
EXAMPLES = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


class Ranks(Protocol):
    """Makes groups of an implementation."""

    def run(self, size: int, body: Callable[[Collective], T]) -> list[T]:
        """Run `body` on every rank of a new group at once; return its results by rank.

        Ranks leave the group when all have returned.
        """
        ...


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a rank's numbers, so different in size that their sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(shape, generator=generator)
    return (values * 10.0 ** (2 - 2 * rank)).to(dtype)


def ordered_sum(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return what all_reduce must make of `numbers`."""
    total = numbers(0, shape, dtype).float()
    for rank in range(1, size):
        total += numbers(rank, shape, dtype).float()
    return total.to(dtype)


class SumSuite:
    """The operations, on groups of `sizes`. Subclasses provide the fixture `ranks`."""

    sizes: tuple[int, ...] = (1, 2, 3)

    @given(data=st.data())
    @EXAMPLES
    def test_sums_are_made_in_the_order_of_ranks(self, ranks: Ranks, data: st.DataObject) -> None:
        size = data.draw(st.sampled_from(self.sizes))
        dtype = data.draw(st.sampled_from(FLOATS))
        counts = data.draw(st.lists(st.integers(0, 5000) | st.integers(0, 40), max_size=3))

        def body(group: Collective) -> list[Tensor]:
            tensors = [numbers(group.rank, (count,), dtype) for count in counts]
            for tensor in tensors:
                group.all_reduce(tensor)
            return tensors

        wanted = [ordered_sum(size, (count,), dtype) for count in counts]
        for got in ranks.run(size, body):
            assert all(map(torch.equal, got, wanted))

    def test_numbers_that_do_not_lie_in_order_are_added_up_in_place(self, ranks: Ranks) -> None:
        size = self.sizes[-1]

        def body(group: Collective) -> Tensor:
            tensor = numbers(group.rank, (7, 5), torch.float32)
            group.all_reduce(tensor[:, 1:4])
            group.all_reduce(tensor.t()[0])
            return tensor

        total = ordered_sum(size, (7, 5), torch.float32)
        for rank, got in enumerate(ranks.run(size, body)):
            assert torch.equal(got[:, :4], total[:, :4])
            assert torch.equal(got[:, 4], numbers(rank, (7, 5), torch.float32)[:, 4])

    @given(data=st.data())
    @EXAMPLES
    def test_what_is_gathered_lies_in_the_order_of_ranks(
        self, ranks: Ranks, data: st.DataObject
    ) -> None:
        size = data.draw(st.sampled_from(self.sizes))
        dtype = data.draw(st.sampled_from((*FLOATS, torch.int64, torch.uint8, torch.bool)))
        shape = tuple(data.draw(st.lists(st.integers(0, 21), min_size=1, max_size=3)))
        dim = data.draw(st.integers(-len(shape), len(shape) - 1))

        def part(rank: int) -> Tensor:
            generator = torch.Generator().manual_seed(rank)
            return torch.randint(0, 2 if dtype is torch.bool else 200, shape, generator=generator)

        wanted = torch.cat([part(rank).to(dtype) for rank in range(size)], dim)
        for got in ranks.run(size, lambda group: group.all_gather(part(group.rank).to(dtype), dim)):
            assert got.dtype is dtype
            assert torch.equal(got, wanted)

    @pytest.mark.parametrize("count", [0, 1, 5000])
    def test_a_broadcast_comes_from_its_source(self, ranks: Ranks, count: int) -> None:
        size = self.sizes[-1]

        def body(group: Collective) -> list[Tensor]:
            tensors = [torch.full((count, 2), group.rank) for _ in range(size)]
            for source, tensor in enumerate(tensors):
                group.broadcast(tensor[:, 1], source)
            return tensors

        for rank, got in enumerate(ranks.run(size, body)):
            for source, tensor in enumerate(got):
                assert (tensor[:, 1] == source).all()
                assert (tensor[:, 0] == rank).all()

    def test_no_rank_passes_a_barrier_before_all_have_come(self, ranks: Ranks) -> None:
        size, rounds = self.sizes[-1], 20
        marks = mmap.mmap(-1, size)

        def body(group: Collective) -> list[int]:
            least = []
            for i in range(rounds):
                marks[group.rank] = i + 1
                group.barrier()
                least.append(min(marks[:]))
                group.barrier()
            return least

        assert ranks.run(size, body) == [list(range(1, rounds + 1))] * size

    def test_operations_of_all_kinds_and_sizes_follow_each_other(self, ranks: Ranks) -> None:
        size = self.sizes[-1]

        def body(group: Collective) -> bool:
            good = True
            for i in range(60):
                shape, dtype = ((i * i * 7) % 3000, 2), FLOATS[i % 3]
                tensor = numbers(group.rank, shape, dtype)
                group.all_reduce(tensor)
                good &= torch.equal(tensor, ordered_sum(size, shape, dtype))
                good &= group.all_gather(torch.tensor([group.rank])).tolist() == list(range(size))
                if i % 7 == group.rank:
                    # The others come first, and find nothing that they may take.
                    torch.randn(200, 200) @ torch.randn(200, 200)
                group.broadcast(tensor, i % size)
            return good

        assert all(ranks.run(size, body))

    def test_bad_arguments_are_refused_and_break_nothing(self, ranks: Ranks) -> None:
        def body(group: Collective) -> float:
            with pytest.raises(ValueError, match="int64"):
                group.all_reduce(torch.ones(3, dtype=torch.int64))
            with pytest.raises(ValueError, match="source 7"):
                group.broadcast(torch.ones(3), 7)
            tensor = torch.ones(3)
            group.all_reduce(tensor)
            return tensor[0].item()

        size = self.sizes[-1]
        assert ranks.run(size, body) == [size] * size


class LossSuite:
    """What the others learn of a rank that is not there. Time-outs are of a second or less."""

    def test_a_rank_that_leaves_is_named_and_the_group_is_broken(self, ranks: Ranks) -> None:
        def body(group: Collective) -> list[tuple[int | None, str]]:
            group.barrier()
            if group.rank == 1:
                group.close()
                group.close()
                with pytest.raises(RankError, match="rank 1 has left"):
                    group.barrier()
                return []
            found = []
            for operation in (
                lambda: group.all_reduce(torch.ones(3000)),
                lambda: group.all_gather(torch.ones(3)),
                lambda: group.broadcast(torch.ones(3), 0),
                group.barrier,
            ):
                with pytest.raises(RankError) as caught:
                    operation()
                found.append((caught.value.rank, str(caught.value)))
            group.close()
            return found

        zero, _, two = ranks.run(3, body)
        for rank, words in (*zero, *two):
            assert rank == 1
            assert "rank 1" in words

    def test_a_rank_that_never_comes_is_named(self, ranks: Ranks) -> None:
        def body(group: Collective) -> int | None:
            group.barrier()
            if group.rank == 2:
                return None  # neither in the operation nor gone: it leaves when all are done
            with pytest.raises(RankError, match=r"rank 2.*all_reduce") as caught:
                group.all_reduce(torch.ones(3))
            return caught.value.rank

        assert ranks.run(3, body) == [2, 2, None]
