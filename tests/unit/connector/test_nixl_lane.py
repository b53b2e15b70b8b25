"""What NIXL is told of memory on a device, by a stand-in that only writes it down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.connector.nixl import lane as lanes
from shared.connector.nixl.lane import Lane, LaneError
from shared.connector.protocol.link import PieceParts
from shared.kv.cut import Cut
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import BLOCK_BYTES, LAYOUT


class OnDevice:
    """Two blocks on the CUDA device 3."""

    layout, num_blocks, num_bytes = LAYOUT, 2, 2 * BLOCK_BYTES
    address, device_id = 0x7000, 3


class FakeHandle:
    def release(self) -> None:
        pass


class FakeAgent:
    def __init__(self, name: str, config: object) -> None:
        self.told: list[tuple[Any, ...]] = []

    def register_memory(self, regions: list[tuple[int, int, int, str]], kind: str) -> None:
        self.told.append((kind, regions))

    def prep_xfer_dlist(self, agent: str, table: Any, kind: str) -> SimpleNamespace:
        self.told.append((kind, agent, table.tolist()))
        return SimpleNamespace(release=lambda: None)

    def make_prepped_xfer(self, *about: object) -> FakeHandle:
        return FakeHandle()

    def get_xfer_descs(self, table: Any, kind: str) -> tuple[str, list[list[int]]]:
        return kind, table.tolist()

    def initialize_xfer(self, *about: Any) -> FakeHandle:
        self.told.append(about)
        return FakeHandle()

    def transfer(self, handle: object) -> str:
        return "PROC"

    def get_agent_metadata(self) -> bytes:
        return b"metadata"

    def add_remote_agent(self, metadata: bytes) -> str:
        return metadata.decode()

    def deregister_memory(self, registered: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(nixl_agent=FakeAgent, nixl_agent_config=lambda **_: None)
    monkeypatch.setattr(lanes, "load_nixl", lambda: api)


def test_a_device_is_registered_as_vram_with_its_number() -> None:
    lane = Lane(OnDevice(), lambda _: None)  # type: ignore[arg-type]
    assert lane.device == 4
    assert not lane.is_aimed
    lane.aim(b"peer", 0x9000, 1, 1)
    assert lane.is_aimed
    lane.write([1], [0], b"name", lambda _: None)
    assert lane._agent.told == [
        ("VRAM", [(0x7000, 2 * BLOCK_BYTES, 3, "")]),
        (
            "VRAM",
            "NIXL_INIT_AGENT",
            [[0x7000, BLOCK_BYTES, 3], [0x7000 + BLOCK_BYTES, BLOCK_BYTES, 3]],
        ),
        ("VRAM", "peer", [[0x9000, BLOCK_BYTES, 0]]),
    ]
    lane.close()
    assert not lane.is_aimed


def test_the_host_is_registered_as_dram_and_may_write_to_a_device() -> None:
    memory = KVMemory(LAYOUT, 1)
    lane = Lane(memory, lambda _: None)
    assert lane.device == 0
    lane.aim(b"peer", 0x9000, 1, 2)
    lane.write([0], [0], b"name", lambda _: None)
    assert [(told[0], told[-1][0][-1]) for told in lane._agent.told[1:]] == [
        ("DRAM", 0),
        ("VRAM", 1),
    ]
    assert lane._agent.told[0] == ("DRAM", [(lane.address, BLOCK_BYTES, 0, "")])
    lane.close()
    memory.close()


def test_parts_of_blocks_are_written_range_by_range() -> None:
    """Each side's ranges end where the other side's do; the peer's blocks have another size."""
    lane = Lane(OnDevice(), lambda _: None)  # type: ignore[arg-type]
    lane.aim(b"peer", 0x9000, 4, 1)
    sent, received = Cut(((0, 10), (20, 6))), Cut(((4, 12), (40, 4)))
    parts = PieceParts([sent], [received], 100)
    lane.write([1], [3], b"name", lambda _: None, parts)
    here, there = 0x7000 + BLOCK_BYTES, 0x9000 + 300
    assert lane._agent.told[1:] == [
        (
            "WRITE",
            ("VRAM", [[here, 10, 3], [here + 20, 2, 3], [here + 22, 4, 3]]),
            ("VRAM", [[there + 4, 10, 0], [there + 14, 2, 0], [there + 40, 4, 0]]),
            "peer",
            b"name",
        )
    ]
    with pytest.raises(LaneError, match="no block 4 of 4"):
        lane.write([1], [4], b"name", lambda _: None, parts)
    lane.close()


def test_a_device_that_nixl_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(agent: FakeAgent, regions: object, kind: str) -> None:
        raise RuntimeError("NIXL_ERR_BACKEND")

    monkeypatch.setattr(FakeAgent, "register_memory", refuse)
    with pytest.raises(LaneError, match="memory of CUDA device 3: NIXL_ERR_BACKEND"):
        Lane(OnDevice(), lambda _: None)  # type: ignore[arg-type]
