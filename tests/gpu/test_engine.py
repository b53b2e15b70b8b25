"""The device suite on a GPU: compiled kernels, CUDA graphs, pinned memory, streams."""

from __future__ import annotations

import pytest

from tests.suites.engine.on_device import EngineOnDeviceSuite


class TestEngineOnGpu(EngineOnDeviceSuite):
    @pytest.fixture
    def device(self) -> str:
        return "cuda"
