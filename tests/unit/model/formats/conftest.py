"""Checkpoints that the tests of formats share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import save_file

from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.gpt_oss import GptOss
from tests.fakes.stored.models import FAMILIES, is_expert, wants_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each family in float32."""

    @functools.cache
    def make(family: str) -> Path:
        model_type, settings = FAMILIES[family]
        model = random_model(model_type, seed=3, **settings)
        return save(model, tmp_path_factory.mktemp(family))

    return make


@pytest.fixture(scope="session")
def stored(
    plain: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, Path]]:
    """A quantised checkpoint, and the dense one that it means."""

    @functools.cache
    def make(family: str, case: str) -> tuple[Path, Path]:
        source, folder = plain(family), tmp_path_factory.mktemp("stored")
        writer = GptOss() if case == "gpt_oss" else ALL[case]
        wants = is_expert if case == "gpt_oss" else wants_of(source)
        dense = quantise_checkpoint(
            source, folder / "stored", writer, wants, is_turned=family == "gpt2"
        )
        (folder / "dense").mkdir()
        save_file(dense, folder / "dense" / "model.safetensors", metadata={"format": "pt"})
        config = (source / "config.json").read_text()
        (folder / "dense" / "config.json").write_text(config)
        return folder / "stored", folder / "dense"

    return make
