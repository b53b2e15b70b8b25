"""The connector suite on `local`."""

from __future__ import annotations

import pytest

from tests.integration.connector.harnesses import LocalHarness
from tests.suites.connector import BehaviourSuite
from tests.suites.connector_frames import FrameSuite
from tests.suites.connector_stress import StressSuite


@pytest.fixture
def harness() -> LocalHarness:
    return LocalHarness()


class TestLocalFrames(FrameSuite):
    pass


class TestLocalBehaviour(BehaviourSuite):
    pass


class TestLocalStress(StressSuite):
    pass
