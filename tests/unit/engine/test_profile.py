"""A record of steps begins at once: the engine waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from shared.engine.profile import StepProfile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_compiler_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`torch` imports it, which takes seconds, when it is asked for the name."""
    asked = []

    def find(name: str) -> NoReturn:
        asked.append(name)
        raise AttributeError(name)

    monkeypatch.delattr(torch, "_inductor", raising=False)
    monkeypatch.setattr(torch, "__getattr__", find)
    profile = StepProfile()
    with profile.part("compute"):
        torch.ones(3)
    path = profile.stop(tmp_path, "here")
    assert "_inductor" not in asked
    assert list(tmp_path.iterdir()) == [path]
