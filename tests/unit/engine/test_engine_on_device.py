"""The device suite on a CPU."""

from __future__ import annotations

import pytest

from tests.suites.engine.on_device import EngineOnDeviceSuite


class TestEngineOnCpu(EngineOnDeviceSuite):
    @pytest.fixture
    def device(self) -> str:
        return "cpu"
