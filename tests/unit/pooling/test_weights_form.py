"""A model that only makes vectors keeps float32 weights for products of many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.model.encoders.products import NativeProduct
from shared.model.native.threads import LibraryThreads, ThreadPlan
from shared.offline.engine_args import EngineArgs
from shared.offline.loaded import LoadedModel
from shared.worker.lifecycle.weights import first_source, load_weights
from tests.unit.pooling.checkpoints import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def of_worker(folder: Path, runner: str) -> int:
    words = ["--model", str(folder), "--dtype", "float32", "--runner", runner, "--directory", "h:1"]
    config = load_config(WorkerProgramConfig, words, prog="test", environ={}).worker
    return load_weights(config, first_source(config), None).loaded.num_weight_bytes


def of_program(folder: Path, runner: str) -> int:
    words = ["--dtype", "float32", "--runner", runner, "--num-blocks", "8"]
    model = LoadedModel(EngineArgs.from_words(folder, words).settings())
    try:
        return model.core.home.num_weight_bytes
    finally:
        model.close()


@pytest.mark.parametrize("bytes_of", [of_worker, of_program])
def test_memory_of_weights(bytes_of: Callable[[Path, str], int], tmp_path: Path) -> None:
    write(tmp_path, "qwen3", vocab_size=97, max_position_embeddings=64)
    plain = torch.zeros(64, 64)
    has_unit = NativeProduct(LibraryThreads(ThreadPlan(1)), plain, None).num_bytes > 5 * 64 * 64
    answers, vectors = bytes_of(tmp_path, "generate"), bytes_of(tmp_path, "pooling")
    assert (vectors > 1.1 * answers) if has_unit else (vectors == answers)
