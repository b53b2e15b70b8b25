"""Plans by ZeroMQ, between threads and from a process that is lost."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ConfigError, RankError
from shared.ranks.plan_socket import PlanSocketReceiver, PlanSocketSender
from tests.fakes.ranks.groups import as_threads, copies
from tests.fakes.servers.ports import free_port
from tests.suites.ranks.plan_channel import ROOM, Channels, ChannelSuite, receive_on, send_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import PlanReceiver, PlanSender

ANY = "tcp://127.0.0.1:0"
LOSSES = [signal.SIGKILL, signal.SIGSTOP]


class SocketThreads:
    """Ends of sockets, each in a thread."""

    def run(
        self,
        num_followers: int,
        lead: Callable[[PlanSender], Any],
        follow: Callable[[PlanReceiver], Any],
    ) -> list[Any]:
        with ExitStack() as leaving:
            sender = PlanSocketSender(ANY, num_followers + 1, timeout_s=1.0, room=ROOM)
            leaving.callback(sender.close)

            def live(rank: int) -> Any:
                receiver = PlanSocketReceiver(sender.address, rank, timeout_s=1.0)
                leaving.callback(receiver.close)
                return follow(receiver)

            ranks = range(1, num_followers + 1)
            return as_threads([partial(lead, sender), *(partial(live, rank) for rank in ranks)])


class TestPlanSockets(ChannelSuite):
    @pytest.fixture
    def channels(self) -> Channels:
        return SocketThreads()


@pytest.mark.parametrize("number", LOSSES)
def test_a_process_that_is_lost_is_named(number: signal.Signals) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"

    def follow() -> None:
        receive_on(PlanSocketReceiver(address, 1, timeout_s=1.0))

    with copies(follow) as (one,):
        sender = PlanSocketSender(address, 2, timeout_s=1.0)
        sender.send(b"first")
        sender.drain()
        one.send(number)
        with pytest.raises(RankError, match="rank 1") as caught:
            send_on(sender)
        assert caught.value.rank == 1


@pytest.mark.parametrize("number", LOSSES)
def test_followers_learn_that_rank_0_is_lost(number: signal.Signals) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"

    def lead() -> None:
        sender = PlanSocketSender(address, 2, timeout_s=1.0)
        sender.send(b"first")
        signal.pause()

    with copies(lead) as (zero,):
        receiver = PlanSocketReceiver(address, 1, timeout_s=1.0)
        assert receiver.receive() == b"first"
        zero.send(number)
        with pytest.raises(RankError, match="rank 0 died, or was cut off") as caught:
            receiver.receive()
        assert caught.value.rank == 0


def test_a_follower_that_never_joins_is_named() -> None:
    sender = PlanSocketSender(ANY, 2, timeout_s=0.1)
    with pytest.raises(RankError, match=r"rank 1 did not join the group within 0\.1 s"):
        sender.send(b"first")
    with pytest.raises(ConfigError, match="cannot listen at tcp://none"):
        PlanSocketSender("tcp://none:1", 2)
