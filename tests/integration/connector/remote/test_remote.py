"""The connector suites on connectors of another process, and what only those have."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.connector.group.inbound import GroupInbound
from shared.errors import TransferError, TransferFailure
from shared.kv.hand_off import HandOff, Holder
from shared.kv.split import KVSplit
from tests.integration.connector.remote.harness import RemoteHarness
from tests.suites.connector.behaviour import SOURCES, TARGETS, BehaviourSuite
from tests.suites.connector.group_transfer import (
    CASES,
    NUM_TOKENS,
    GroupSuite,
    a_layout,
    groups,
    part,
)
from tests.suites.connector.harness import Harness, running
from tests.suites.connector.stress import StressSuite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    # Names of sockets are short.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class TestBehaviour(BehaviourSuite):
    """Each endpoint in a thread with an event loop of its own."""

    @pytest.fixture
    def harness(self, runtime_dir: Path) -> RemoteHarness:
        return RemoteHarness("shm", runtime_dir)

    async def test_connections_are_made_again_after_a_loss(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            for _ in range(2):
                inbound = await receiver.open(sender.id, TARGETS)
                outbound = await sender.connector.connect(inbound.ticket, 5)
                await outbound.push(0, SOURCES)
                await outbound.finish(5)
                await inbound.wait(5)
                (link,) = sender.connector._sender._links.values()
                sender.connector.loop.call_soon_threadsafe(
                    link.lose, TransferFailure.PEER_LOST, "cut by the test"
                )


class TestStress(StressSuite):
    #: An act that is cancelled may not have begun.
    reads_in_order = False

    @pytest.fixture
    def harness(self, runtime_dir: Path) -> RemoteHarness:
        return RemoteHarness("zmq", runtime_dir, threads=False)


class TestGroups(GroupSuite):
    @pytest.fixture
    def harness(self, runtime_dir: Path) -> RemoteHarness:
        return RemoteHarness("zmq", runtime_dir, threads=False)

    def cases(self) -> Sequence[tuple[int, int, int]]:
        return CASES if len(CASES) > 40 else [(1, 3, 2), (4, 2, 8)]

    async def test_what_one_rank_cannot_open_no_rank_has_open(self, harness: Harness) -> None:
        """A rank whose endpoint is gone; and a caller that is cancelled meanwhile."""
        layout = a_layout(4)
        holders = [Holder(layout, KVSplit.of(layout, size)) for size in (1, 2)]
        async with groups(harness, *holders) as (sender, receiver):
            hand_off = HandOff(*holders)
            moved = hand_off.moved(0, NUM_TOKENS)

            def begin() -> asyncio.Task[GroupInbound]:
                opening = GroupInbound.open(
                    hand_off,
                    request_id="request-1",
                    senders=sender.ids,
                    connectors=receiver.connectors,
                    tables=part(receiver, hand_off, moved),
                    moved=moved,
                    num_tokens=NUM_TOKENS,
                )
                return asyncio.create_task(opening)

            first, second = receiver.connectors
            num_cancelled = 0
            for num_turns in range(0, 40, 2):
                opening = begin()
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                opening.cancel()
                await asyncio.wait([opening])
                num_cancelled += opening.cancelled()
                if not opening.cancelled():
                    await opening.result().abort()
                assert not first.server._acts._inbound
                assert not second.server._acts._inbound
            assert num_cancelled > 5
            await second.server.close()
            with pytest.raises(TransferError, match=r"rank 0 to rank 1: .*rank 1"):
                await begin()
            assert not first.server._acts._inbound
