"""Small checkpoints with the architecture, the format and the config of ones that documents name.

The documents are vLLM's pages on its offline engine, on AnythingLLM and on AMD Quark.
"""

from __future__ import annotations

import fnmatch
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from shared.model.checkpoint.files.checkpoint_files import BIN_NAME, SINGLE_NAME
from shared.model.random_tokenizer import write_tokenizer
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.integers import Awq
from tests.fakes.stored.quark import QuarkFloat8, QuarkInt8Inputs, QuarkMx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tests.fakes.stored.base import Writer

PAGE = Path(__file__).parents[3] / "docs" / "checkpoints.md"
TITLE = "## Checkpoints that documents name"
_INTRO = """Each is represented by a small one with its architecture, format and config. It answers
as the dense model that it means, token for token in float32
([test_named.py](../tests/unit/model/formats/test_named.py)). No real one has been loaded."""
_VOCAB_SIZE = 321
#: Heads, and sizes that have whole groups of 32 columns.
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    "use_cache": True,
}
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 128,
    "word_embed_proj_dim": 128,
    "ffn_dim": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
}
LLAMA: dict[str, Any] = {
    **_SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
}
QWEN2: dict[str, Any] = {
    **_SIZES,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "intermediate_size": 256,
    "max_window_layers": 35,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "torch_dtype": "float16",
}
QWEN2_MOE: dict[str, Any] = {
    **_SIZES,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "max_window_layers": 21,
    "moe_intermediate_size": 96,
    "norm_topk_prob": False,
    "num_experts": 6,
    "num_experts_per_tok": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 160,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = {
    **_SIZES,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
QWEN3: dict[str, Any] = {
    **_SIZES,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 32,
    "max_window_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
_AWQ: dict[str, Any] = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
_ROUTERS = ("*.gate", "*.shared_expert_gate")


def _spec(dtype: str, *, is_dynamic: bool = False, **own: Any) -> dict[str, Any]:
    """Numbers of a kind, with every key that Quark exports."""
    return {
        "ch_axis": None,
        "dtype": dtype,
        "group_size": None,
        "is_dynamic": is_dynamic,
        "is_scale_quant": False,
        "mx_element_dtype": None,
        "observer_cls": "PerTensorMinMaxObserver",
        "qscheme": "per_tensor",
        "round_method": "half_even",
        "scale_calculation_mode": None,
        "scale_format": None,
        "scale_type": "float",
        "symmetric": None,
        **own,
    }


def _mx_spec(dtype: str, *, is_dynamic: bool = False) -> dict[str, Any]:
    return _spec(
        dtype,
        is_dynamic=is_dynamic,
        ch_axis=-1,
        group_size=32,
        observer_cls="PerBlockMXObserver",
        qscheme="per_group",
        scale_calculation_mode="even",
        scale_format="e8m0",
    )


def _group(weight: Any, inputs: Any, outputs: Any = None) -> dict[str, Any]:
    return {
        "bias": None,
        "input_tensors": inputs,
        "output_tensors": outputs,
        "target_device": None,
        "weight": weight,
    }


_FP8 = _spec("fp8_e4m3")
_MXFP4 = _group(_mx_spec("fp4"), _mx_spec("fp4", is_dynamic=True))


def _quark(
    usual: dict[str, Any],
    *,
    layers: Mapping[str, Any] | None = None,
    excluded: tuple[str, ...] = (),
    has_kv: bool = False,
    algorithm: str | None = None,
) -> dict[str, Any]:
    group = ["*k_proj", "*v_proj"] if has_kv else []
    return {
        "algo_config": algorithm and [{"name": algorithm, "model_decoder_layers": "model.layers"}],
        "exclude": ["lm_head", *excluded],
        "export": {
            "kv_cache_group": group,
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
        "global_quant_config": usual,
        "kv_cache_post_rope": False,
        "kv_cache_quant_config": {name: _group(None, None, _FP8) for name in group},
        "layer_quant_config": dict(layers or {}),
        "layer_type_quant_config": {},
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "softmax_quant_spec": None,
        "version": "0.11",
    }


@dataclass(frozen=True)
class Named:
    """A checkpoint of a document, and the small one that stands for it."""

    name: str
    #: As a reader of the table calls it.
    format: str
    config: dict[str, Any]
    quantization: dict[str, Any] | None = None
    #: By pattern for names of matrices, the first that fits.
    writers: Mapping[str, Writer] = field(default_factory=dict)
    has_kv_scales: bool = False
    #: PyTorch's own file, without the name of the model in front of the decoder's.
    is_pickled: bool = False

    def writer_of(self, name: str) -> Writer | None:
        """The writer of a matrix, by its name in the file or in transformers' module."""
        others = ("embed", "lm_head", "norm", "gate.weight", "bias")
        if any(each in name for each in others):
            return None
        fits = (own for pattern, own in self.writers.items() if fnmatch.fnmatch(name, pattern))
        return next(fits, None)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write it, and the dense model that it means."""
        raw = {**self.config, "quantization_config": self.quantization}
        settings = {"head_dim": ..., **self.config}
        settings.pop("architectures")
        plain = save(random_model(settings.pop("model_type"), seed=3, **settings), folder / "plain")
        stored: dict[str, Tensor] = {}
        dense: dict[str, Tensor] = {}
        for name, tensor in load_file(plain / SINGLE_NAME).items():
            writer = self.writer_of(name)
            if writer is None:
                stored[name] = dense[name] = tensor
                continue
            written, base = writer.write(tensor), name.removesuffix(".weight")
            dense[name] = written.dense.contiguous()
            stored |= {base + suffix: part.clone() for suffix, part in written.tensors.items()}
            if self.has_kv_scales and base.endswith(("k_proj", "v_proj")):
                stored[f"{base}.output_scale"] = torch.tensor(0.02)
        for own, tensors in (("stored", stored), ("dense", dense)):
            (folder / own).mkdir()
            kept = raw if own == "stored" else self.config
            write_tokenizer(folder / own, _VOCAB_SIZE, 512)
            (folder / own / "config.json").write_text(json.dumps(kept, indent=2))
            if own == "stored" and self.is_pickled:
                bare = {name.removeprefix("model."): each for name, each in tensors.items()}
                torch.save(bare, folder / own / BIN_NAME)
            else:
                whole = {name: each.contiguous() for name, each in tensors.items()}
                save_file(whole, folder / own / SINGLE_NAME, metadata={"format": "pt"})
        return folder / "stored", folder / "dense"


def _moe(name: str, weights: str, inputs: str) -> Named:
    own = _group(_mx_spec(weights), _mx_spec(inputs, is_dynamic=True))
    return Named(
        name,
        f"Quark {_OF_MX[weights]}, inputs {_OF_MX[inputs]}",
        QWEN2_MOE,
        _quark(own, excluded=_ROUTERS),
        {"*": QuarkMx(weights, inputs)},
    )


_OF_MX = {"fp4": "MXFP4", "fp6_e2m3": "MXFP6 E2M3", "fp6_e3m2": "MXFP6 E3M2"}


def _mixed(name: str, config: dict[str, Any], *excluded: str) -> Named:
    """Layers in FP8 beside layers in MXFP4, as a search has chosen them."""
    fp8 = _group(_FP8, _FP8)
    layers = {
        "*layers.1.self_attn.k_proj": _group(_FP8, _FP8, _FP8),
        "*layers.1.self_attn.v_proj": _group(_FP8, _FP8, _FP8),
        "*layers.1.self_attn.*": fp8,
        "*k_proj": {**_MXFP4, "output_tensors": _FP8},
        "*v_proj": {**_MXFP4, "output_tensors": _FP8},
    }
    return Named(
        name,
        "Quark MXFP4 and FP8 by layer, inputs too, FP8 scales of a KV cache",
        config,
        _quark(_MXFP4, layers=layers, excluded=excluded, has_kv=True, algorithm="autosmoothquant"),
        {"*layers.1.self_attn.*": QuarkFloat8(), "*": QuarkMx()},
        has_kv_scales=True,
    )


_INT8 = _spec("int8", symmetric=True)
NAMED = (
    Named("facebook/opt-125m", "float16, pytorch_model.bin", OPT, is_pickled=True),
    Named(
        "Llama-2-70b-chat-hf-w-fp8-a-fp8-kvcache-fp8-pertensor-autosmoothquant",
        "Quark FP8, inputs too, FP8 scales of a KV cache",
        LLAMA,
        _quark(
            _group(_FP8, _FP8),
            layers={name: _group(_FP8, _FP8, _FP8) for name in ("*k_proj", "*v_proj")},
            has_kv=True,
            algorithm="autosmoothquant",
        ),
        {"*": QuarkFloat8()},
        has_kv_scales=True,
    ),
    Named(
        "Llama-2-70b-chat-hf-w-int8-a-int8-pertensor",
        "Quark int8, inputs too",
        LLAMA,
        _quark(_group(_INT8, _INT8)),
        {"*": QuarkInt8Inputs()},
    ),
    Named("Qwen/Qwen1.5-32B-Chat-AWQ", "AWQ", QWEN2, _AWQ, {"*": Awq(group=128)}),
    _moe("fxmarty/qwen_1.5-moe-a2.7b-mxfp4", "fp4", "fp4"),
    _moe("fxmarty/qwen1.5_moe_a2.7b_chat_w_fp4_a_fp6_e2m3", "fp4", "fp6_e2m3"),
    _moe("fxmarty/qwen1.5_moe_a2.7b_chat_w_fp6_e3m2_a_fp6_e3m2", "fp6_e3m2", "fp6_e3m2"),
    _mixed("amd/Llama-2-70b-chat-hf-WMXFP4FP8-AMXFP4FP8-AMP-KVFP8", LLAMA),
    _mixed("amd/Mixtral-8x7B-Instruct-v0.1-WMXFP4FP8-AMXFP4FP8-AMP-KVFP8", MIXTRAL, "*.gate"),
    _mixed("amd/Qwen3-8B-WMXFP4FP8-AMXFP4FP8-AMP-KVFP8", QWEN3),
)


def section() -> str:
    """The section of the page on them."""
    lines = [TITLE, "", _INTRO, "", "| checkpoint | architecture | format |", "|---|---|---|"]
    for each in NAMED:
        (architecture,) = each.config["architectures"]
        lines.append(f"| `{each.name}` | {architecture} | {each.format} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with that section in it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{TITLE}\n")
    _, found, behind = rest.partition("\n## ")
    return before + section() + (f"\n## {behind}" if found else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
