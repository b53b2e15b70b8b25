"""Checkpoints of AutoRound, rounded to nearest, saved and read by itself."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound, __version__
from gptqmodel import BACKEND, GPTQModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.oracles.base import DENSE, KEPT, About, keep_files, write_oracle
from tests.oracles.models import save_with_tokenizer, small_llama

_GROUP = 32
#: Read by GPTQModel: transformers wants a further library for it.
_GPTQ = "auto_gptq"


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    format: str
    bits: int = 4
    sym: bool = True
    #: Bits by linear.
    others: dict[str, int] = field(default_factory=dict)


CASES = {
    "2": _Case("2 bits in groups of 32", "auto_round", 2),
    "2-uneven": _Case("2 bits in groups of 32 with zeros", "auto_round", 2, sym=False),
    "3-uneven": _Case("3 bits in groups of 32 with zeros", "auto_round", 3, sym=False),
    "3": _Case("3 bits in groups of 32", "auto_round", 3),
    "4": _Case("4 bits in groups of 32", "auto_round"),
    "8": _Case("8 bits in groups of 32", "auto_round", 8),
    "mix": _Case(
        "4 and 8 bits by layer, one layer left out",
        "auto_round",
        others={"mlp.down_proj": 8, "mlp.up_proj": 16},
    ),
    "awq-packing": _Case(
        "4 bits in groups of 32 with zeros, AWQ's packing", "auto_round:auto_awq", sym=False
    ),
    "gptq": _Case("4 bits in groups of 32", _GPTQ),
    "awq": _Case("4 bits in groups of 32 with zeros", "auto_awq", sym=False),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what AutoRound makes of it."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as target:
        # Rows and columns of 3 bits are packed in multiples of 32.
        save_with_tokenizer(small_llama(torch.float16, inner=96, hidden=64), source)
        _quantise(source, target, case)
        (written,) = Path(target).glob("**/config.json")
        shutil.copytree(written.parent, folder, dirs_exist_ok=True)
    if case.format == _GPTQ:
        own = GPTQModel.load(str(folder), backend=BACKEND.TORCH, device="cpu", dtype=torch.float16)
        model = own.model
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu")
    keep_files(folder)
    linears = {each: model.get_submodule(each) for each in KEPT}
    oracle = {each + DENSE: _weight(linear) for each, linear in linears.items()}
    kind = type(next(iter(linears.values())))
    reader = f"{kind.__module__}.{kind.__name__}"
    about = About(library=f"AutoRound {__version__}", reader=reader, what=case.what)
    write_oracle(folder, about, oracle)


def _quantise(source: str, target: str, case: _Case) -> None:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    words = [" ".join(f"w{each * row % 16}" for each in range(20)) for row in range(1, 6)]
    AutoRound(
        model,
        AutoTokenizer.from_pretrained(source),
        bits=case.bits,
        group_size=_GROUP,
        sym=case.sym,
        layer_config={
            f"model.layers.0.{path}": {"bits": bits, "group_size": _GROUP, "sym": case.sym}
            for path, bits in case.others.items()
        },
        iters=0,
        disable_opt_rtn=True,
        nsamples=4,
        seqlen=16,
        dataset=words,
        device_map="cpu",
    ).quantize_and_save(target, format=case.format)


@torch.inference_mode()
def _weight(linear: Any) -> torch.Tensor:
    """What a linear multiplies rows of a unit matrix with: its weight, without a sum."""
    if hasattr(linear, "awq_weight_dequantize"):  # its product has a kernel, which rounds
        return linear.awq_weight_dequantize(device="cpu", dtype=torch.float16).T
    columns = getattr(linear, "in_features", None) or linear.infeatures
    return linear(torch.eye(columns, dtype=torch.float16)).T
