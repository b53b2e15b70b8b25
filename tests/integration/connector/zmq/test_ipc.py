"""The connector suite on `zmq_ipc`, and what only it can do wrong."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.connector.zeromq.ipc import ZmqIpcConnector
from shared.errors import ConfigError
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.integration.connector.harnesses import ZmqIpcHarness
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.frames import FrameSuite
from tests.suites.connector.harness import LAYOUT, running
from tests.suites.connector.stress import StressSuite

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def harness(tmp_path: Path) -> ZmqIpcHarness:
    tmp_path.chmod(0o700)
    return ZmqIpcHarness(tmp_path)


class TestZmqIpcFrames(FrameSuite):
    pass


class TestZmqIpcBehaviour(BehaviourSuite):
    pass


class TestZmqIpcStress(StressSuite):
    pass


async def test_another_host_is_out_of_reach(harness: ZmqIpcHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        offer = two.connector.offer()
        assert offer.connector == "zmq_ipc"
        assert await one.connector.can_reach(offer)
        assert not await one.connector.can_reach(replace(offer, params={"boot_id": "another"}))
        assert not await one.connector.can_reach(replace(offer, address=offer.address + "x"))


async def test_stale_sockets_are_removed_and_live_ones_are_not(harness: ZmqIpcHarness) -> None:
    stale = harness.runtime_dir / "baton-zmq-0123456789abcdef.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
        left_behind.bind(str(stale))
    os.utime(stale, (0, 0))
    async with running(harness, "live") as [live]:
        os.utime(live.connector.offer().address.removeprefix("ipc://"), (0, 0))
        async with running(harness, "other") as [other]:
            assert await other.connector.can_reach(live.connector.offer())
            assert not stale.exists()
        stale.touch()


async def test_a_folder_that_others_may_enter_is_refused(harness: ZmqIpcHarness) -> None:
    harness.runtime_dir.chmod(0o750)
    with pytest.raises(ConfigError, match="0700"):
        async with running(harness, "one"):
            pass


def test_a_folder_whose_name_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    memory = KVMemory(LAYOUT, 1)
    with pytest.raises(ConfigError, match="too long"):
        ZmqIpcConnector(
            worker=WorkerId("a", "1"), memory=memory, runtime_dir=tmp_path / ("x" * 100)
        )
    memory.close()
