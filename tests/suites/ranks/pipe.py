"""How every pipe behaves towards the stages at its ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import RankError

if TYPE_CHECKING:
    from shared.ranks.base import Pipe

    #: Of ranks 1 and 3; the second one waits for 0.2 s.
    Ends = tuple[Pipe, Pipe]


def send_on(pipe: Pipe, tensor: torch.Tensor) -> None:
    """Send more than there is room for."""
    for _ in range(10):
        pipe.send(tensor)


class PipeSuite:
    """Subclasses have the fixture `ends`."""

    def test_tensors_arrive_in_order(self, ends: Ends) -> None:
        before, behind = ends
        sent = [torch.randn(n, 700) for n in (1, 40, 3)]
        for tensor in sent:
            before.send(tensor)
        for tensor in sent:
            found = torch.empty_like(tensor)
            behind.receive(found)
            assert torch.equal(found, tensor)

    def test_another_tensor_than_is_awaited_breaks_the_pipe(self, ends: Ends) -> None:
        before, behind = ends
        before.send(torch.zeros(5))
        with pytest.raises(RankError, match="rank 1 sent 20 bytes in place of 24: rank 3") as found:
            behind.receive(torch.empty(6))
        assert found.value.rank == 1
        with pytest.raises(RankError):
            behind.receive(torch.empty(5))

    def test_a_late_peer_is_named(self, ends: Ends) -> None:
        before, behind = ends
        with pytest.raises(RankError, match=r"rank 1 did not come within 0.2 s: rank 3") as found:
            behind.receive(torch.empty(6))
        assert found.value.rank == 1
        large = torch.zeros(10 << 18)
        with pytest.raises(RankError, match="rank 3") as found:  # it has left
            send_on(before, large)
        assert found.value.rank == 3
