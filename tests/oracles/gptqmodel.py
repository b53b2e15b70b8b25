"""Checkpoints of GPTQModel, quantised, saved and read by itself.

On a machine of two cores it needs GPTQMODEL_CPU_WORKERS=2.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.version import __version__ as version

from tests.oracles.base import DENSE, KEPT, About, keep_files, write_oracle
from tests.oracles.models import calibration, save_with_tokenizer, small_llama

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    settings: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)


def _case(bits: int, *, sym: bool = True, desc_act: bool = False, **settings: Any) -> _Case:
    zeros = "" if sym else " with zeros"
    order = " in any order" if desc_act else ""
    kind = " of version 2" if settings.get("format") == "gptq_v2" else ""
    group = settings.setdefault("group_size", 32)
    groups = "by row" if group == -1 else f"in groups of {group}{order}"
    own = {"bits": bits, "sym": sym, "desc_act": desc_act, **settings}
    # Zeros of 3 bits need rows in multiples of 32.
    sizes = {"hidden": 64, "inner": 96} if bits == 3 else {}
    return _Case(f"{bits} bits {groups}{zeros}{kind}", own, sizes)


CASES = {
    **{f"{bits}": _case(bits) for bits in (2, 3, 4, 8)},
    **{f"{bits}-uneven": _case(bits, sym=False) for bits in (2, 4, 8)},
    **{f"{bits}-order": _case(bits, desc_act=True, sym=False) for bits in (3, 4)},
    "4-rows": _case(4, group_size=-1, act_group_aware=False),
    "4-rows-order": _case(4, group_size=-1, desc_act=True),
    "4-128": _Case(
        "4 bits in groups of 128 with zeros, one linear",
        {"bits": 4, "group_size": 128, "sym": False, "dynamic": {r"-:(?!.*down_proj)": {}}},
        {"inner": 128},
    ),
    "4-v2": _case(4, format="gptq_v2", sym=False),
    "8-v2-order": _case(8, format="gptq_v2", sym=False, desc_act=True),
    "mix": _Case(
        "4 and 8 bits by layer, one layer left out",
        {
            "bits": 4,
            "group_size": 32,
            "act_group_aware": False,
            "dynamic": {
                r"+:.*\.down_proj": {"bits": 8, "group_size": -1},
                r"+:.*\.k_proj": {"bits": 2, "sym": False},
                r"-:.*\.up_proj": {},
            },
        },
    ),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what GPTQModel makes of it."""
    case = CASES[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as source:
        save_with_tokenizer(small_llama(torch.float16, **case.sizes), source)
        config = QuantizeConfig(device="cpu", offload_to_disk=False, **case.settings)
        model = GPTQModel.load(source, config, backend=BACKEND.TORCH)
        model.quantize(
            [
                {"input_ids": ids[0].tolist(), "attention_mask": [1] * ids.shape[1]}
                for ids in calibration(8, 32)
            ],
            batch_size=1,
            backend=BACKEND.TORCH,
        )
        model.save(str(folder))
    read = GPTQModel.load(str(folder), backend=BACKEND.TORCH, device="cpu", dtype=torch.float16)
    keep_files(folder)
    linears = {each: read.model.get_submodule(each) for each in KEPT}
    oracle = {
        each + DENSE: linear.dequantize_weight().T
        for each, linear in linears.items()
        if isinstance(linear, TorchLinear)
    }
    reader = f"{TorchLinear.__module__}.{TorchLinear.__name__}.dequantize_weight"
    write_oracle(
        folder, About(library=f"GPTQModel {version}", reader=reader, what=case.what), oracle
    )
