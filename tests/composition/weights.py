"""What weights are stored as, and what a worker is told of them.

A new format is a value here; one that behaves as another inside the system is none.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import gguf
import pytest

from shared.gguf.folder import model_folder
from tests.fakes.checkpoints.gguf import NAMES, add_tokenizer, export, finish
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.models import wants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

_GROUP = 32
#: llama.cpp's names of what Baton reads from other files only.
_OTHERS = {
    "llama4_text": "llama4",
    "gemma4_text": "gemma4",
    "qwen3_5_text": "qwen35",
    "deepseek_v3": "deepseek2",
    "nemotron": "nemotron",
}


@dataclass(frozen=True, slots=True)
class Weights:
    """A value of the axis."""

    flags: tuple[str, ...] = ("--dtype", "float32")
    #: Writes another form of a checkpoint, and returns what to load; None: it stays as it is.
    store: Callable[[Path, Path], Path] | None = None


def _store(case: str, source: Path, target: Path) -> Path:
    """As a format has it; matrices that have no whole groups stay as they are."""
    shutil.copytree(source, target)
    # The library itself cannot read zeros of few rows.
    wants = wants_of(source, columns=_GROUP, rows=9)
    quantise_checkpoint(source, target, ALL[case], wants)
    return target


def _store_gguf(source: Path, target: Path) -> Path:
    """As a folder that is made of llama.cpp's file."""
    target.mkdir()
    path = target / "model.gguf"
    kind = json.loads((source / "config.json").read_text())["model_type"]
    if kind in NAMES:
        export(source, path, kind=_eights, tokenizer=partial(add_tokenizer, source))
    else:
        finish(gguf.GGUFWriter(path, _OTHERS[kind]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_CACHE_DIR", str(target))
        return model_folder(path)


def _eights(_: str, tensor: Tensor) -> gguf.GGMLQuantizationType:
    is_whole = tensor.shape[-1] % _GROUP == 0
    return gguf.GGMLQuantizationType.Q8_0 if is_whole else gguf.GGMLQuantizationType.F16


WEIGHTS: Mapping[str, Weights] = {
    "float32": Weights(),
    "bfloat16": Weights(("--dtype", "bfloat16")),
    "int8": Weights(("--dtype", "bfloat16", "--quantization", "int8")),
    "fp8": Weights(("--dtype", "float32", "--quantization", "fp8")),
    "int4": Weights(("--dtype", "float32", "--quantization", "int4")),
    # Codes that native kernels keep, and other executors make dense.
    "stored int4": Weights(store=partial(_store, "ct int4 uneven")),
    # Inputs that are rounded: by token, by token and block, and to numbers with powers of two.
    "stored W8A8": Weights(store=partial(_store, "ct w8a8")),
    "stored FP8 blocks": Weights(store=partial(_store, "fp8 blocks")),
    "stored MXFP6": Weights(store=partial(_store, "quark mxfp6")),
    "GGUF": Weights(store=_store_gguf),
}
