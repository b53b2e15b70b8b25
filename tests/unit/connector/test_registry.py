"""Connectors by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.connector.local import LocalHub
from shared.connector.protocol.limits import TransferLimits
from shared.connector.registry import FACTORIES, ConnectorSettings, create
from shared.errors import ConfigError
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import BLOCK_BYTES, LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKER = WorkerId("worker", "1")


@pytest.fixture
def memory() -> Iterator[KVMemory]:
    memory = KVMemory(LAYOUT, 2)
    yield memory
    memory.close()


def test_every_known_connector_is_made_by_its_name(memory: KVMemory, tmp_path: Path) -> None:
    settings = ConnectorSettings(hub=LocalHub(), runtime_dir=tmp_path)
    made = create(list(FACTORIES), worker=WORKER, memory=memory, settings=settings)
    assert [connector.name for connector in made] == list(FACTORIES)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rdma", "local, shm, zmq_ipc, zmq, nixl"),
        ("local", "hub"),
        ("shm", "runtime_dir"),
        ("cuda_ipc", "cuda_ipc was removed: use nixl"),
    ],
)
def test_what_is_unknown_or_missing_is_named(memory: KVMemory, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        create([name], worker=WORKER, memory=memory, settings=ConnectorSettings())


def test_a_window_smaller_than_a_block_is_a_config_error(memory: KVMemory) -> None:
    limits = TransferLimits(window_bytes=BLOCK_BYTES - 1)
    with pytest.raises(ConfigError, match="window_bytes"):
        create(["zmq"], worker=WORKER, memory=memory, settings=ConnectorSettings(limits=limits))
