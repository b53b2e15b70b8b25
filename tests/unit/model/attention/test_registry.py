"""Attention backends are found by name."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from shared.errors import ConfigError
from shared.model.attention.registry import default_backend, get_backend


def test_backends_know_their_name() -> None:
    assert get_backend("torch").name == "torch"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'flash' is unknown; known: torch, triton"):
        get_backend("flash")


def test_triton_is_needed_only_by_its_own_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert get_backend("torch").name == "torch"
    with pytest.raises(ConfigError, match="needs the package triton"):
        get_backend("triton")


def test_a_gpu_gets_triton_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_backend(torch.device("cuda")) == "triton"
    assert default_backend(torch.device("cpu")) == "torch"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert default_backend(torch.device("cuda")) == "torch"
