"""Small models that are stored in few bits, and the dense ones that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from tests.fakes.families.cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Dense families, fused projections, experts, and one that only transformers' module computes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "phi3": CASES["phi3-partial-window"],
    "mixtral": CASES["mixtral"],
    "qwen3_moe": CASES["qwen3_moe"],
    "gpt2": CASES["gpt2"],
    "llama4": CASES["llama4"],
    "deepseek_v3": CASES["deepseek_v3"],
    "nemotron": ("nemotron", {}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "apertus": ("apertus", {"head_dim": ...}),
    "gpt_oss": (CASES["gpt_oss"][0], {**CASES["gpt_oss"][1], "intermediate_size": 64}),
}


def is_expert(name: str) -> bool:
    """Of gpt-oss: whether a tensor has the weights of all experts."""
    return ".experts." in name and not name.endswith("bias")


def wants_of(checkpoint: Path, *, columns: int = 1, rows: int = 1) -> Callable[[str], bool]:
    """Of a checkpoint: the linears of layers, but for routers.

    columns: they have a multiple of it; rows: they have at least as many.
    """
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    others = ("embed", "lm_head", "wte", "wpe", "gate.weight")
    return lambda name: (
        len(shapes[name]) == 2
        and shapes[name][1] % columns == 0
        and shapes[name][0] >= rows
        and not any(each in name for each in others)
    )
