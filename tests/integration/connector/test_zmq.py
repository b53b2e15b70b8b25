"""The connector suite on `zmq`, and what only it can do wrong."""

from __future__ import annotations

import pytest

from tests.integration.connector.harnesses import ZmqHarness
from tests.suites.connector import BehaviourSuite
from tests.suites.connector_frames import FrameSuite
from tests.suites.connector_stress import StressSuite


@pytest.fixture
def harness() -> ZmqHarness:
    return ZmqHarness()


class TestZmqFrames(FrameSuite):
    pass


class TestZmqBehaviour(BehaviourSuite):
    pass


class TestZmqStress(StressSuite):
    pass
