"""The connector suite on `shm`, and what only it can do wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.connector.harnesses import ShmHarness
from tests.suites.connector import BehaviourSuite
from tests.suites.connector_frames import FrameSuite
from tests.suites.connector_stress import StressSuite

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def harness(tmp_path: Path) -> ShmHarness:
    tmp_path.chmod(0o700)
    return ShmHarness(tmp_path)


class TestShmFrames(FrameSuite):
    pass


class TestShmBehaviour(BehaviourSuite):
    pass


class TestShmStress(StressSuite):
    pass
