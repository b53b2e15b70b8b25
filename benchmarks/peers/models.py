"""The models of the comparison: random weights in sizes that two cores can serve."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors.torch import save_file

from benchmarks.peers.places import home
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.random_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

#: Token ids below are special tokens and bytes; prompts are drawn from the rest.
FIRST_WORD = 300

MODELS = {
    "small": CheckpointSpec(
        architecture="qwen3",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
    ),
    "medium": CheckpointSpec(
        architecture="qwen2",
        num_layers=24,
        hidden_size=896,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
    ),
    # 1.6 billion weights, of which a token uses 0.2 billion.
    "experts": CheckpointSpec(
        architecture="qwen3_moe",
        num_layers=16,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "num_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "norm_topk_prob": True,
        },
    ),
    # The layers of Gemma 3 270M: every sixth reads all tokens, the others the last 512.
    "hybrid": CheckpointSpec(
        architecture="gemma3_text",
        num_layers=18,
        hidden_size=640,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "sliding_window": 512,
            "layer_types": [
                "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)
            ],
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    ),
    # The layers of Qwen3-Next: three of four keep a state of the gated delta rule; experts in all.
    "states": CheckpointSpec(
        architecture="qwen3_next",
        num_layers=12,
        hidden_size=1024,
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        weight_std=0.02,
        extra={
            "layer_types": [
                "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(12)
            ],
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
            "num_experts": 64,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "partial_rotary_factor": 0.25,
        },
    ),
    # The size of BERT base; it makes vectors only.
    "bert": CheckpointSpec(
        architecture="bert",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        num_kv_heads=12,
        head_dim=64,
        intermediate_size=3072,
        vocab_size=32000,
        max_position_embeddings=512,
        dtype="float32",
        weight_std=0.02,
    ),
}
#: Models that make vectors, in float32, as most are served: one that reads whole texts, and one
#: whose vector is the state of the last token.
EMBEDDERS = ("bert", "small-vectors")
#: Of a name like `medium-adapters`: the model with LoRA adapters.
ADAPTERS = "adapters"
#: Of a name like `small-vectors`: the model as an embedder.
VECTORS = "vectors"
ADAPTER_RANK = 16
_NUM_ADAPTERS = 4
_ADAPTED = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
#: Tokens of the longest sequence that systems are started for.
MAX_MODEL_LEN = 4096
_LONGER = {"hybrid": 17408, "bert": 512}
_IN_FEW_BITS = 4352


def spec_of(name: str) -> CheckpointSpec:
    """Return the shape of a model, or of what `small-q4_0` is made of.

    Raises:
        KeyError: no such model.
    """
    return MODELS[name.partition("-")[0]]


def max_model_len(name: str) -> int:
    """Return the longest sequence that systems are started for with this model."""
    base, _, form = name.partition("-")
    is_few_bits = form and form not in (ADAPTERS, VECTORS)
    return _IN_FEW_BITS if is_few_bits else _LONGER.get(base, MAX_MODEL_LEN)


def dtype_of(name: str) -> str:
    """Return the dtype that systems are started with for this model."""
    return "float32" if name in EMBEDDERS else "bfloat16"


def model_folder(name: str) -> Path:
    """The checkpoint, written now if it is not in the cache yet. Same spec, same folder.

    Raises:
        KeyError: no such model.
    """
    spec = MODELS[name]
    text = json.dumps(dataclasses.asdict(spec), sort_keys=True, default=dict)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    folder = home() / "models" / f"{name}-{digest}"
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if spec.architecture == "bert":
            _write_bert(unfinished, spec)
        else:
            write_random_checkpoint(unfinished, spec)
        unfinished.rename(folder)
    return folder


def embedder_folder(name: str) -> Path:
    """The model as an embedder whose vector is the last token's state, of length 1. Raises as
    `model_folder`.
    """
    folder = model_folder(name)
    out = folder.with_name(f"{folder.name}.{VECTORS}")
    if not (out / "modules.json").is_file():
        out.mkdir(exist_ok=True)
        for path in folder.iterdir():
            link = out / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
        _write_modules(out, spec_of(name).hidden_size, "lasttoken")
    return out


def adapter_folders(name: str) -> tuple[Path, ...]:
    """Random adapters of all linears of the layers, as PEFT keeps them; none but for models whose
    name says so. Raises as `model_folder`.
    """
    base, _, form = name.partition("-")
    if form != ADAPTERS:
        return ()
    folder, spec = model_folder(base), spec_of(base)
    found = []
    for number in range(_NUM_ADAPTERS):
        out = folder.with_name(f"{folder.name}.adapter-{number}")
        if not (out / "adapter_config.json").is_file():
            _write_adapter(out, spec, number)
        found.append(out)
    return tuple(found)


def _write_adapter(out: Path, spec: CheckpointSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kv_size, inner = spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    query_size = spec.num_heads * spec.head_dim
    sizes = {
        "q_proj": (spec.hidden_size, query_size),
        "k_proj": (spec.hidden_size, kv_size),
        "v_proj": (spec.hidden_size, kv_size),
        "o_proj": (query_size, spec.hidden_size),
        "gate_proj": (spec.hidden_size, inner),
        "up_proj": (spec.hidden_size, inner),
        "down_proj": (inner, spec.hidden_size),
    }
    tensors = {}
    for layer in range(spec.num_layers):
        for part, names in _ADAPTED.items():
            for name in names:
                path = f"base_model.model.model.layers.{layer}.{part}.{name}"
                shapes = (ADAPTER_RANK, sizes[name][0]), (sizes[name][1], ADAPTER_RANK)
                for matrix, shape in zip("AB", shapes, strict=True):
                    values = torch.randn(shape, generator=generator) * spec.weight_std
                    tensors[f"{path}.lora_{matrix}.weight"] = values.to(torch.bfloat16)
    out.mkdir(exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "target_modules": [name for names in _ADAPTED.values() for name in names],
    }
    (out / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def _write_bert(out: Path, spec: CheckpointSpec) -> None:
    config = transformers.BertConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        intermediate_size=spec.intermediate_size,
        max_position_embeddings=spec.max_position_embeddings,
        initializer_range=spec.weight_std,
    )
    torch.manual_seed(spec.seed)
    transformers.BertModel(config).save_pretrained(out)
    write_tokenizer(out, spec.vocab_size, spec.max_position_embeddings)
    _write_modules(out, spec.hidden_size, "mean")


def _write_modules(out: Path, size: int, pooling: str) -> None:
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    entries = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(modules)
    ]
    (out / "1_Pooling").mkdir()
    (out / "2_Normalize").mkdir()
    how = {"word_embedding_dimension": size, "pooling_mode": pooling}
    (out / "1_Pooling" / "config.json").write_text(json.dumps(how), encoding="utf-8")
    (out / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
