"""The features that meet each other, and what each value of them sets.

A new feature is a value here, or an axis of its own. An axis whose values are settings of workers
returns flags; one that shapes a request is read by `request.py`; one that changes or breaks
something, or prepares a cache, by `system.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.composition.weights import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A value for each axis.
Row = dict[str, str]

#: A model type that we have no description of.
BY_TRANSFORMERS = "nemotron, transformers"
#: One for each kind of layers, and one that only a module of transformers computes.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    # Its heads are of whole groups of scales, so that two ranks can divide quantised weights, too.
    "mistral, window": {
        "architecture": "mistral",
        "head_dim": 64,
        "extra": {"sliding_window": 24},
    },
    "gemma3, two groups": {
        "architecture": "gemma3_text",
        "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_local_base_freq": 5000.0,
            "query_pre_attn_scalar": 16,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    },
    "llama4, chunks": {
        "architecture": "llama4_text",
        "extra": {
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 40,
            "floor_scale": 20,
            # Where one expert is chosen, rounding to bfloat16 can change it, and no tie is near.
            "moe_layers": [],
            "intermediate_size_mlp": 96,
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
        },
    },
    "gemma4, shared KV": {
        "architecture": "gemma4_text",
        "num_layers": 4,
        "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "global_head_dim": 112,
            "hidden_size_per_layer_input": 20,
            "vocab_size_per_layer_input": 330,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    },
    "qwen3_5, states": {
        "architecture": "qwen3_5_text",
        "num_layers": 3,
        "has_further": True,
        "extra": {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
        },
    },
    "qwen3_moe, experts": {
        "architecture": "qwen3_moe",
        "extra": {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
    },
    "deepseek_v3, latent": {
        "architecture": "deepseek_v3",
        "num_kv_heads": 6,
        "has_further": True,
        # As transformers has it: what is rotated.
        "head_dim": 6,
        "extra": {
            "q_lora_rank": 28,
            "kv_lora_rank": 22,
            "qk_nope_head_dim": 18,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    },
    BY_TRANSFORMERS: {"model_type": "nemotron"},
}
#: 8-bit floats with scales that the checkpoint has.
STORED_SCALES = "checkpoint"
KV_FORMATS = ("auto", "int8", "fp8", STORED_SCALES)
EXECUTORS = ("native", "torch", "transformers")
SPECULATIONS: Mapping[str, Mapping[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "suffix_decoding_max_spec_factor": 4.0},
    "draft model": {"method": "draft_model"},
    "eagle": {"method": "eagle", "hand_off": "transfer"},
    "eagle3": {"method": "eagle3", "hand_off": "transfer"},
    "medusa": {"method": "medusa"},
    "mtp": {"method": "mtp", "hand_off": "transfer"},
}
GRAMMARS: Mapping[str, tuple[str, str] | None] = {
    "none": None,
    "regex": ("auto", "regex"),
    "JSON, xgrammar": ("xgrammar", "json"),
    "JSON, guidance": ("guidance", "json"),
    "JSON behind a thought": ("auto", "thought"),
}
#: Names of adapters, by request: the row's own, the plain one beside it, and a third one with the
#: own's prompt. Empty: the base; None: it is not asked.
ADAPTERS: Mapping[str, tuple[str, str, str | None]] = {
    "none": ("", "", None),
    "one": ("one", "one", None),
    "mixed": ("one", "", "two"),
}
#: What is asked for: answers alone, or vectors beside them.
TASKS = ("generate", "embed")
CONNECTORS = ("shm", "zmq_ipc", "zmq", "nixl")
SOURCES = ("computed", "decode's cache", "prefill's cache", "offload")
OFFLOADS = ("none", "host", "disk")
#: Prefill and decode workers.
SHAPES: Mapping[str, tuple[int, int]] = {
    "1 : 1": (1, 1),
    "2 : 1": (2, 1),
    "1 : 2": (1, 2),
    "0 : 1": (0, 1),
}
_ALONE: tuple[str, ...] = ()
_TWO = ("--tensor-parallel-size", "2")
#: Of each prefill worker, and of each decode worker: what makes so many ranks.
RANKS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "1 : 1": (_ALONE, _ALONE),
    "2 : 1": (_TWO, _ALONE),
    "1 : 2": (_ALONE, _TWO),
    "2 : 2": (_TWO, _TWO),
    "1 : 2 stages": (_ALONE, ("--pipeline-parallel-size", "2")),
    "1 : 1, blocks 8 : 16": (("--block-size", "8"), _ALONE),
}
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 5},
    "n = 2": {"temperature": 1.0, "seed": 6, "n": 2},
    "log probabilities": {"temperature": 0.0, "logprobs": 2},
    "prompt scores": {"temperature": 0.0, "prompt_logprobs": 2},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "stop string": {"temperature": 0.9, "seed": 10, "stop": "late"},
    "beams": {"temperature": 0.0, "n": 2},
}
EVENTS = (
    *("none", "client gone", "prefill killed", "decode killed", "decode drained"),
    *("paused", "asleep", "new weights"),
)

AXES: Mapping[str, tuple[str, ...]] = {
    "family": tuple(FAMILIES),
    "weights": tuple(WEIGHTS),
    "KV format": KV_FORMATS,
    "executor": EXECUTORS,
    "speculation": tuple(SPECULATIONS),
    "grammar": tuple(GRAMMARS),
    "adapter": tuple(ADAPTERS),
    "task": TASKS,
    "connector": CONNECTORS,
    "prefix from": SOURCES,
    "offload": OFFLOADS,
    "prefill : decode": tuple(SHAPES),
    "ranks, prefill : decode": tuple(RANKS),
    "request": tuple(REQUESTS),
    "event": EVENTS,
}
