"""A device that is not here is refused by name, with the reason."""

from __future__ import annotations

import pytest
import torch

from shared.errors import ConfigError
from shared.model.device import check_device


def test_the_cpu_is_always_there() -> None:
    assert check_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpu", "is unknown; known: cpu, cuda"),
        ("meta", "is not supported; supported: cpu, cuda"),
        ("cuda:99", r"cannot be used: .*; --device cpu needs none"),
    ],
)
def test_others_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{name}' {reason}"):
        check_device(name)
