"""`nixl` between two processes on one GPU. It has never run: it was written without a device."""

from __future__ import annotations

import importlib.util

import pytest

from tests.suites.connector.nixl_on_device import NixlOnDeviceSuite


@pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="the extra `nixl` is not installed"
)
class TestNixlOnGpu(NixlOnDeviceSuite):
    num_blocks = 512

    @pytest.fixture
    def device(self) -> str:
        return "cuda:0"
