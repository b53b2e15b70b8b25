"""Small checkpoints of all formats, to be changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.gguf import export, split
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.bits_and_bytes import Eights, Fours
from tests.fakes.stored.floats import Fbgemm, Fp8
from tests.fakes.stored.gpt_oss import GptOss
from tests.fakes.stored.integers import Gptq
from tests.fakes.stored.models import is_expert, wants_of
from tests.oracles.base import FOLDER, names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from tests.fakes.stored.base import Writer

_SIZES: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 64,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}
_EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
_WRITERS: Mapping[str, Writer] = {
    "fp8 blocks": Fp8(block=32),
    "fp8 static": Fp8(block=None),
    "fbgemm": Fbgemm(),
    "gptq in order": Gptq(desc_act=True, sym=False),
    "nf4": Fours(),
    "nf4 nested": Fours(is_nested=True),
    "bitsandbytes int8": Eights(),
}
#: As a pattern of modules names them, beside that of all others.
_DYNAMIC = {"dynamic": {"+:.*down.*": {"bits": 8}, "-:.*lm_head.*": {}}}


def recorded() -> list[Path]:
    """Checkpoints of models that other libraries wrote."""
    folders = [FOLDER / name for name in names()]
    return [
        each
        for each in folders
        if "architectures" in json.loads((each / "config.json").read_text())
    ]


def write_seeds(folder: Path) -> list[Path]:
    """Write checkpoints of the other formats, as far as that needs no library of theirs."""
    plain = folder / "plain"
    write_random_checkpoint(plain, CheckpointSpec(**_SIZES))
    made = [plain]
    for name, writer in _WRITERS.items():
        quantise_checkpoint(plain, folder / name, writer, wants_of(plain, columns=32))
        made.append(folder / name)
    experts = folder / "experts"
    own = {**_EXPERTS, "layer_types": ["full_attention"], "sliding_window": 16}
    write_random_checkpoint(
        experts,
        CheckpointSpec(**{**_SIZES, "intermediate_size": 64}, architecture="gpt_oss", extra=own),
    )
    quantise_checkpoint(experts, folder / "mxfp4", GptOss(), is_expert)
    return [*made, folder / "mxfp4"]


def write_compressed(folder: Path, source: Path) -> list[Path]:
    """Write what compressed-tensors makes of a checkpoint; its library takes seconds to load."""
    from tests.fakes.stored.cases import ALL

    made = []
    for name, writer in ALL.items():
        if name.startswith("ct ") and "blocks" not in name:
            quantise_checkpoint(source, folder / name, writer, wants_of(source, columns=32))
            made.append(folder / name)
    return made


def write_sharded(folder: Path) -> Path:
    """Write a checkpoint of several files with an index."""
    write_random_checkpoint(folder, CheckpointSpec(**_SIZES, num_shards=3))
    return folder


def write_pickled(folder: Path, source: Path) -> Path:
    """Write the same in PyTorch's own file."""
    folder.mkdir()
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    torch.save(load_file(source / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


def write_gguf(folder: Path, source: Path) -> list[Path]:
    """Write a model of several types, the same in two files, and one with experts; each alone."""
    kinds = (Type.Q4_0, Type.Q8_0, Type.Q5_1, Type.F16, Type.BF16, Type.Q4_1)

    def kind(name: str, tensor: Tensor) -> Type:
        own = kinds[len(name) % len(kinds)]
        return Type.F32 if tensor.shape[-1] % 32 else own

    experts = folder / "checkpoint"
    write_random_checkpoint(
        experts, CheckpointSpec(**_SIZES, architecture="mixtral", extra=_EXPERTS)
    )
    made = []
    for name, own in (("dense", source), ("experts", experts)):
        (folder / name).mkdir()
        made.append(export(own, folder / name / "model.gguf", kind=kind))
    return [*made, split(made[0], folder / "split", 2)[0]]
