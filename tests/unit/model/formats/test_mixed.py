"""A checkpoint whose linears have several formats, or none: PyTorch and native answer alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.answers import NUM_ROUNDED_TOKENS, SHORT_PROMPTS, check_rows
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.compressed import Compressed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: By case of compressed-tensors: what the names of its linears end with. Others are dense.
FORMATS = {
    "attention, feed-forward": {"ct w8a8": ("qkv_proj",), "ct int4 even": ("gate_up_proj",)},
    "feed-forward": {"ct fp8 tokens": ("gate_up_proj",), "ct naive int8": ("down_proj",)},
    "all": {
        "ct fp8 blocks": ("qkv_proj",),
        "ct w8a8 uneven": ("o_proj",),
        "ct w4a8": ("gate_up_proj",),
        "ct mxfp8 inputs": ("down_proj",),
    },
    "experts": {"ct w8a8": ("w1", "w3"), "ct fp8 tokens": ("w2",)},
}


def mix(source: Path, folder: Path, formats: Mapping[str, tuple[str, ...]]) -> Path:
    """Write a checkpoint with a group of settings for each format."""
    groups = {}
    for name, ends in formats.items():
        writer = ALL[name]
        assert isinstance(writer, Compressed)
        targets = tuple(f"{end}.weight" for end in ends)
        quantise_checkpoint(
            source, folder / name, writer, lambda tensor, t=targets: tensor.endswith(t)
        )
        source = folder / name
        scheme: dict[str, Any] = writer.scheme.model_dump(mode="json")
        groups[name] = {**scheme, "targets": [f"re:.*{end}$" for end in ends]}
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] |= {"config_groups": groups, "format": "mixed-precision"}
    (source / "config.json").write_text(json.dumps(config))
    return source


@pytest.mark.parametrize("formats", FORMATS)
def test_answers_are_those_of_pytorch(formats: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model_type, settings = CASES["mixtral" if formats == "experts" else "phi3-partial-window"]
    plain = save(random_model(model_type, seed=3, **settings), tmp_path / "plain")
    checkpoint = mix(plain, tmp_path, FORMATS[formats])
    native, expected = (
        PagedDriver(
            load_model(checkpoint, attention_backend=backend).model, block_size=8, chunk=13
        ).generate(SHORT_PROMPTS, NUM_ROUNDED_TOKENS)[1]
        for backend in ("native", "torch")
    )
    check_rows(native, expected, at_least=0.5)
