"""How every plan channel behaves towards rank 0 and its followers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import PlanReceiver, PlanSender

#: At most this many short messages wait for a follower.
ROOM = 4
#: A message of more than this fills the queue.
SLOT_BYTES = 64


class Channels(Protocol):
    """Makes channels of an implementation, of ROOM slots of SLOT_BYTES."""

    def run(
        self,
        num_followers: int,
        lead: Callable[[PlanSender], Any],
        follow: Callable[[PlanReceiver], Any],
    ) -> list[Any]:
        """Run `lead` as rank 0 and `follow` as each follower of a new channel, at once.

        Returns their results by rank. The ends are closed when all have returned.
        """
        ...


def messages(lengths: list[int]) -> list[bytes]:
    """Return messages of these lengths, no two alike that are long enough to differ."""
    return [bytes((i * 31 + at) % 256 for at in range(n)) for i, n in enumerate(lengths)]


def send_on(sender: PlanSender) -> None:
    """Send more than any queue has room for."""
    for data in messages([SLOT_BYTES] * 5000):
        sender.send(data)


def receive_on(receiver: PlanReceiver) -> None:
    """Receive until something raises."""
    while True:
        receiver.receive()


class ChannelSuite:
    """Subclasses provide the fixture `channels`."""

    @given(
        lengths=st.lists(st.integers(0, 3 * SLOT_BYTES) | st.integers(0, 2000), max_size=20),
        num_followers=st.integers(0, 3),
    )
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    def test_every_follower_gets_every_message_in_order(
        self, channels: Channels, lengths: list[int], num_followers: int
    ) -> None:
        sent = messages(lengths)

        def lead(sender: PlanSender) -> int:
            for data in sent:
                sender.send(data)
            sender.drain()
            return sender.size

        def follow(receiver: PlanReceiver) -> list[bytes]:
            return [receiver.receive() for _ in sent]

        size, *got = channels.run(num_followers, lead, follow)
        assert size == num_followers + 1
        assert got == [sent] * num_followers

    def test_rank_0_waits_for_a_follower_that_is_behind(self, channels: Channels) -> None:
        taken = threading.Event()
        sent = messages([SLOT_BYTES] * 40)
        num_sent = 0

        def lead(sender: PlanSender) -> None:
            nonlocal num_sent
            for data in sent:
                sender.send(data)
                num_sent += 1
                if num_sent == ROOM:
                    taken.set()
            sender.drain()

        def follow(receiver: PlanReceiver) -> list[tuple[bytes, int]]:
            assert taken.wait(20)
            got = []
            for _ in sent:
                before = num_sent
                got.append((receiver.receive(), before))
            return got

        _, got = channels.run(1, lead, follow)
        assert [data for data, _ in got] == sent
        for num_taken, (_, num_before) in enumerate(got):
            assert num_before <= num_taken + ROOM

    def test_a_follower_that_takes_nothing_is_named(self, channels: Channels) -> None:
        over = threading.Event()

        def lead(sender: PlanSender) -> int | None:
            with pytest.raises(RankError, match="rank 2") as caught:
                send_on(sender)
            with pytest.raises(RankError, match="rank 2"):
                sender.send(b"more")
            with pytest.raises(RankError, match="rank 2"):
                sender.drain()
            over.set()
            return caught.value.rank

        def follow(receiver: PlanReceiver) -> Any:
            if receiver.rank == 2:
                return over.wait(20)
            with pytest.raises(RankError):
                receive_on(receiver)
            return None

        assert channels.run(2, lead, follow) == [2, None, True]

    def test_what_was_sent_before_the_end_is_taken(self, channels: Channels) -> None:
        sent = messages([3, 2, 1])
        ended = threading.Event()

        def lead(sender: PlanSender) -> None:
            for data in sent:
                sender.send(data)
            sender.drain()
            sender.send(b"last")
            sender.close()
            sender.close()
            ended.set()
            with pytest.raises(RankError, match="has left"):
                sender.send(b"more")

        def follow(receiver: PlanReceiver) -> list[bytes]:
            got = [receiver.receive() for _ in sent]
            assert ended.wait(20)
            got.append(receiver.receive())
            for _ in range(2):
                with pytest.raises(RankError, match="rank 0") as caught:
                    receiver.receive()
                assert caught.value.rank == 0
            return got

        assert channels.run(1, lead, follow)[1] == [*sent, b"last"]

    def test_a_follower_that_leaves_is_named(self, channels: Channels) -> None:
        def lead(sender: PlanSender) -> int | None:
            with pytest.raises(RankError, match="rank 1") as caught:
                send_on(sender)
            return caught.value.rank

        def follow(receiver: PlanReceiver) -> bytes:
            first = receiver.receive()
            receiver.close()
            with pytest.raises(RankError, match="has left"):
                receiver.receive()
            return first

        assert channels.run(1, lead, follow)[0] == 1
