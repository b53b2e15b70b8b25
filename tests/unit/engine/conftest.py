"""A tiny random Llama on disk, ours and Hugging Face's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine import engines
from tests.fakes.engine.engines import StepMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.model.loaded import LoadedModel


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=StepMode, ids=lambda mode: mode.value)
def step_mode(request: pytest.FixtureRequest) -> Iterator[StepMode]:
    """Run a module's tests with engines of each mode."""
    engines.defaults.mode = request.param
    yield request.param
    engines.defaults.mode = StepMode.SYNCHRONOUS


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    write_random_checkpoint(path, CheckpointSpec())
    return path


@pytest.fixture(scope="session")
def llama(checkpoint: Path) -> LoadedModel:
    return load_model(checkpoint)


@pytest.fixture(scope="session")
def hf_llama(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
