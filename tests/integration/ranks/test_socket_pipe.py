"""Tensors from one stage to the next by ZeroMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.ranks.plan_socket import PlanSocketReceiver, PlanSocketSender
from shared.ranks.socket_pipe import ROOM, SocketPipe
from tests.suites.ranks.pipe import PipeSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.suites.ranks.pipe import Ends


class TestSocketPipe(PipeSuite):
    @pytest.fixture
    def ends(self) -> Iterator[Ends]:
        names = (1, 3)
        sender = PlanSocketSender("tcp://127.0.0.1:0", 2, timeout_s=1, room=ROOM, names=names)
        receiver = PlanSocketReceiver(sender.address, 1, timeout_s=1, limit_s=0.2, names=names)
        found = SocketPipe(None, sender), SocketPipe(receiver, None)
        yield found
        for pipe in found:
            pipe.close()
