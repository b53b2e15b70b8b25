"""Plans through a ring in shared memory, between threads."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.plan import StepPlan
from shared.errors import ConfigError
from shared.ranks.plan_ring import PlanRingReceiver, PlanRingSender, ring_file
from tests.fakes.ranks.groups import as_threads
from tests.suites.ranks.plan_channel import ROOM, SLOT_BYTES, Channels, ChannelSuite

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import PlanReceiver, PlanSender


class RingThreads:
    """Ends of a ring, each in a thread."""

    def run(
        self,
        num_followers: int,
        lead: Callable[[PlanSender], Any],
        follow: Callable[[PlanReceiver], Any],
    ) -> list[Any]:
        size = num_followers + 1
        shape = {"num_slots": ROOM, "slot_bytes": SLOT_BYTES}
        options: dict[str, Any] = {"timeout_s": 1.0, "spin_s": 0.0, **shape}
        with ExitStack() as leaving:
            file = ring_file(size, **shape)
            leaving.callback(file.close)
            sender = PlanRingSender(file.fd, size, **options)
            leaving.callback(sender.close)

            def live(rank: int) -> Any:
                receiver = PlanRingReceiver(file.fd, rank, size, **options)
                leaving.callback(receiver.close)
                return follow(receiver)

            return as_threads(
                [partial(lead, sender), *(partial(live, rank) for rank in range(1, size))]
            )


class TestPlanRing(ChannelSuite):
    @pytest.fixture
    def channels(self) -> Channels:
        return RingThreads()


def test_a_plan_arrives() -> None:
    plan = StepPlan(rows=[3, 1], firsts=[7, 9], num_new_tokens=[1, 1], token_ids=[5, 300])

    def follow(receiver: PlanReceiver) -> StepPlan:
        return decode_plan(receiver.receive())

    _, got = RingThreads().run(1, lambda sender: sender.send(encode_plan(plan)), follow)
    assert got == plan


def test_slots_are_a_power_of_two_and_followers_are_not_rank_0() -> None:
    with pytest.raises(ConfigError, match="power of two"):
        ring_file(2, num_slots=6)
    file = ring_file(2)
    with pytest.raises(ConfigError, match="ranks 1 to 1, not 0"):
        PlanRingReceiver(file.fd, 0, 2)
    file.close()
