"""Tensors from one stage to the next, between threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import RankError
from shared.ranks.ring_pipe import PipeEnd, RingPipe, pipe_file

if TYPE_CHECKING:
    from collections.abc import Iterator

Ends = tuple[RingPipe, RingPipe]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Those of ranks 1 and 3."""
    file = pipe_file()
    end = PipeEnd(file.fd, (1, 3))
    found = RingPipe(None, end, timeout_s=0.2), RingPipe(end, None, timeout_s=0.2)
    yield found
    for pipe in found:
        pipe.close()
    file.close()


def test_tensors_arrive_in_order(ends: Ends) -> None:
    before, behind = ends
    sent = [torch.randn(n, 700) for n in (1, 40, 3)]
    for tensor in sent:
        before.send(tensor)
    for tensor in sent:
        found = torch.empty_like(tensor)
        behind.receive(found)
        assert torch.equal(found, tensor)


def test_another_tensor_than_is_awaited_breaks_the_pipe(ends: Ends) -> None:
    before, behind = ends
    before.send(torch.zeros(5))
    with pytest.raises(RankError, match="rank 1 sent 20 bytes in place of 24: rank 3") as found:
        behind.receive(torch.empty(6))
    assert found.value.rank == 1
    with pytest.raises(RankError):
        behind.receive(torch.empty(5))


def test_a_late_peer_is_named(ends: Ends) -> None:
    before, behind = ends
    with pytest.raises(RankError, match=r"rank 1 did not come within 0.2 s: rank 3") as found:
        behind.receive(torch.empty(6))
    assert found.value.rank == 1
    with pytest.raises(RankError, match="rank 3") as found:  # it has left, and the ring is full
        before.send(torch.zeros(10 << 20))
    assert found.value.rank == 3
