"""The connector suite on `local`."""

from __future__ import annotations

import pytest

from tests.integration.connector.harnesses import LocalHarness
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.frames import FrameSuite
from tests.suites.connector.stress import StressSuite


@pytest.fixture
def harness() -> LocalHarness:
    return LocalHarness()


class TestLocalFrames(FrameSuite):
    pass


class TestLocalBehaviour(BehaviourSuite):
    pass


class TestLocalStress(StressSuite):
    pass
