"""The connector suites on connectors of another process, and what only those have."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.errors import TransferFailure
from tests.integration.connector.remote import RemoteHarness
from tests.suites.connector import SOURCES, TARGETS, BehaviourSuite
from tests.suites.connector_harness import Harness, running
from tests.suites.connector_stress import StressSuite
from tests.suites.group_transfer import CASES, GroupSuite

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
