"""Checkpoints of the kinds of layers, and what one process answers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.families.cases import CASES
from tests.fakes.model.sharded_models import MODELS, answers
from tests.fakes.model.transformers_models import random_model, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.model.sharded_models import Answers


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def make(name: str) -> Path:
        case, heads = MODELS[name]
        model_type, settings = CASES[case]
        return save(random_model(model_type, **{**settings, **heads}), tmp_path_factory.mktemp("m"))

    return make


@pytest.fixture(scope="package")
def alone(checkpoint: Callable[[str], Path]) -> Callable[[str], Answers]:
    """What one process answers."""

    @functools.cache
    def ask(name: str) -> Answers:
        return answers(load_model(checkpoint(name), attention_backend="torch"))

    return ask
