"""All architectures. A new one needs a line here, and a function if its config has own keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.gguf.architecture import PARTS, Architecture

if TYPE_CHECKING:
    from shared.gguf.values import Values

#: Layers of the largest Gemma 2 and Gemma 3, whose scores are scaled by hidden size per head. No
#: value of a file says it: llama.cpp knows the models by their number of layers, too.
_LARGE_GEMMAS = {"gemma2": 46, "gemma3": 62}
_GEMMA_PARTS = {
    **PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: Of a layer without experts.
_DENSE_GATE = re.compile(r"blk\.(\d{1,6})\.ffn_gate\.weight")
_GEMMA2_USUAL = {
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3_LOCAL_THETA = 10_000.0


def find_architecture(values: Values) -> Architecture:
    """Return the architecture of a file.

    Raises:
        ConfigError: it is none of those that are known here.
    """
    name = values.text("general.architecture")
    has_experts = bool(values.find_whole("expert_count"))
    for each in ARCHITECTURES:
        if (each.name, each.has_experts) == (name, has_experts):
            return each
    known = ", ".join(dict.fromkeys(each.name for each in ARCHITECTURES))
    kind = " with experts" if has_experts else ""
    raise ConfigError(
        f"{values.header.path}: general.architecture {name!r}{kind} is not supported; supported: "
        f"{known}"
    )


def _window(values: Values) -> dict[str, Any]:
    return {"sliding_window": values.find_whole("attention.sliding_window") or None}


def _gemma(values: Values) -> dict[str, Any]:
    name, num_layers = values.text("general.architecture"), values.whole("block_count")
    heads = values.whole("attention.head_count")
    scalar = values.find_whole("attention.key_length")
    if num_layers == _LARGE_GEMMAS[name] and heads:
        scalar = values.whole("embedding_length") // heads
    return {
        **_window(values),
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": values.find_number("attn_logit_softcapping"),
        "final_logit_softcapping": values.find_number("final_logit_softcapping"),
    }


def _gemma2(values: Values) -> dict[str, Any]:
    """The first files have no caps and no window; llama.cpp takes those of all models, too."""
    found = {key: value for key, value in _gemma(values).items() if value is not None}
    return {**_GEMMA2_USUAL, **found}


def _gemma3(values: Values) -> dict[str, Any]:
    local = values.find_number("rope.freq_base_swa")
    return {**_gemma(values), "rope_local_base_freq": local or _GEMMA3_LOCAL_THETA}


def _llama(values: Values) -> dict[str, Any]:
    """Files of Mistral say llama; with a window it is not the same."""
    if not values.find_whole("attention.sliding_window"):
        return {}
    return {**_window(values), "architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def _mixtral(values: Values) -> dict[str, Any]:
    return {
        **_window(values),
        "num_local_experts": values.whole("expert_count"),
        "num_experts_per_tok": values.whole("expert_used_count"),
    }


def _qwen_moe(values: Values) -> dict[str, Any]:
    inner = values.whole("expert_feed_forward_length")
    return {
        "num_experts": values.whole("expert_count"),
        "num_experts_per_tok": values.whole("expert_used_count"),
        "moe_intermediate_size": inner,
        "intermediate_size": values.find_whole("feed_forward_length") or inner,
        "mlp_only_layers": sorted(
            int(layer[1]) for name in values.tensors if (layer := _DENSE_GATE.fullmatch(name))
        ),
        # llama.cpp computes the one so, and the other not; no value of a file says it.
        "norm_topk_prob": values.text("general.architecture") == "qwen3moe",
        "shared_expert_intermediate_size": values.find_whole("expert_shared_feed_forward_length"),
    }


def _gpt_oss(values: Values) -> dict[str, Any]:
    keys = ("expert_feed_forward_length", "feed_forward_length")
    return {
        **_mixtral(values),
        "intermediate_size": next(filter(None, map(values.find_whole, keys)), None),
    }


ARCHITECTURES = (
    Architecture(
        name="llama",
        hf_name="LlamaForCausalLM",
        model_type="llama",
        rotates_neighbours=True,
        own_keys=_llama,
    ),
    Architecture(
        name="llama",
        has_experts=True,
        hf_name="MixtralForCausalLM",
        model_type="mixtral",
        parts={
            **PARTS,
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        },
        rotates_neighbours=True,
        own_keys=_mixtral,
    ),
    Architecture(name="qwen2", hf_name="Qwen2ForCausalLM", model_type="qwen2"),
    Architecture(name="qwen3", hf_name="Qwen3ForCausalLM", model_type="qwen3"),
    Architecture(
        name="qwen2moe",
        has_experts=True,
        hf_name="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        parts={
            **PARTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        own_keys=_qwen_moe,
    ),
    Architecture(
        name="qwen3moe",
        has_experts=True,
        hf_name="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        own_keys=_qwen_moe,
    ),
    Architecture(
        name="gpt-oss",
        has_experts=True,
        hf_name="GptOssForCausalLM",
        model_type="gpt_oss",
        parts={
            **PARTS,
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps": "mlp.experts.gate_up_proj",
            "ffn_down_exps": "mlp.experts.down_proj",
        },
        joins_experts=True,
        own_keys=_gpt_oss,
    ),
    Architecture(
        name="gemma2",
        hf_name="Gemma2ForCausalLM",
        model_type="gemma2",
        parts=_GEMMA_PARTS,
        norm_offset=1.0,
        own_keys=_gemma2,
    ),
    Architecture(
        name="gemma3",
        hf_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        parts=_GEMMA_PARTS,
        norm_offset=1.0,
        own_keys=_gemma3,
    ),
    Architecture(
        name="phi3",
        hf_name="Phi3ForCausalLM",
        model_type="phi3",
        parts={**PARTS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        own_keys=_window,
    ),
)
