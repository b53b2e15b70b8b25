"""A model of Llama-3-8B's shape with random weights, made on the device: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shared.model.attention.registry import get_backend
from shared.model.checkpoint.config import parse_spec
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loaded import LoadedModel

if TYPE_CHECKING:
    from benchmarks.gpu.bench import Bench

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 16384,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
TINY: dict[str, Any] = LLAMA_3_8B | {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
#: Wide enough for the most likely token to stand out.
_STD = 0.05


def raw_config(bench: Bench) -> dict[str, Any]:
    """The shape of this run as a Hugging Face config."""
    shape: dict[str, Any] = bench.pick(LLAMA_3_8B, TINY)
    return shape


@torch.inference_mode()
def make_model(bench: Bench) -> LoadedModel:
    """bfloat16 on a GPU, float32 on a CPU, so that its tokens do not hang on rounding."""
    spec = parse_spec(raw_config(bench))
    dtype = torch.bfloat16 if bench.is_cuda else torch.float32
    with torch.device(bench.device):
        backend = get_backend(bench.implementation)
        model = CausalLM(spec=spec, backend=backend, dtype=dtype).eval()
    generator = torch.Generator(bench.device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, _STD, generator=generator)
    return LoadedModel(
        model=model,
        spec=spec,
        dtype=dtype,
        fingerprint="random",
        num_weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        made_from=0,
    )
