"""Checkpoints of a given size in several formats. Their numbers are random, and the layers equal.

Layers are made once and written many times, so that little memory is needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors import TensorSpec, serialize_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

HIDDEN, INNER, HEADS, KV_HEADS, VOCAB = 2048, 5632, 16, 8, 32000
HEAD_DIM = HIDDEN // HEADS
KV = KV_HEADS * HEAD_DIM
#: By projection: its part of a layer, llama.cpp's name, rows and columns.
LINEARS = {
    "q_proj": ("self_attn", "attn_q", HIDDEN, HIDDEN),
    "k_proj": ("self_attn", "attn_k", KV, HIDDEN),
    "v_proj": ("self_attn", "attn_v", KV, HIDDEN),
    "o_proj": ("self_attn", "attn_output", HIDDEN, HIDDEN),
    "gate_proj": ("mlp", "ffn_gate", INNER, HIDDEN),
    "up_proj": ("mlp", "ffn_up", INNER, HIDDEN),
    "down_proj": ("mlp", "ffn_down", HIDDEN, INNER),
}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
IN_LAYER = sum(rows * columns for *_, rows, columns in LINEARS.values())
#: Standard deviation of weights, so that products stay finite.
STD = 0.02
#: Numbers that share a scale in int4.
GROUP = 128


@dataclass(frozen=True, slots=True)
class Format:
    """How linears are stored."""

    bits: float
    write: Callable[[Path, int], None]


def make(name: str, num_bytes: int, folder: Path) -> Path:
    """Return the checkpoint of a format in about so many bytes, written now if it is not there."""
    own = FORMATS[name]
    layers = max(1, round((num_bytes - 2 * VOCAB * HIDDEN) / (IN_LAYER * own.bits / 8)))
    target = folder / f"{name}-{layers}"
    if not target.is_dir():
        unfinished = target.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        own.write(unfinished, layers)
        unfinished.rename(target)
    return target


def files(checkpoint: Path) -> list[Path]:
    """Return the files with weights."""
    return sorted([*checkpoint.glob("*.safetensors"), *checkpoint.glob("*.gguf")])


def _write_bfloat16(folder: Path, layers: int) -> None:
    made = {part: _bfloat16(rows, columns) for part, (*_, rows, columns) in LINEARS.items()}
    _write_safetensors(folder, layers, lambda part, name: {f"{name}.weight": made[part]}, config={})


def _write_int4(folder: Path, layers: int) -> None:
    random = np.random.default_rng(1)
    made = {}
    for part, (*_, rows, columns) in LINEARS.items():
        words = random.integers(-(2**31), 2**31, (rows, columns // 8), np.int32)
        scales = np.full((rows, columns // GROUP), STD / 4, np.float16)
        made[part] = {
            "weight_packed": ("int32", words),
            "weight_scale": ("float16", scales),
            "weight_shape": ("int64", np.array([rows, columns])),
        }
    scheme = {
        "targets": ["Linear"],
        "weights": {
            "num_bits": 4,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": GROUP,
        },
    }
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }
    _write_safetensors(
        folder,
        layers,
        lambda part, name: {f"{name}.{own}": each for own, each in made[part].items()},
        config={"quantization_config": quantized},
    )


def _write_gguf(kind: Type) -> Callable[[Path, int], None]:
    def write(folder: Path, layers: int) -> None:
        writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
        writer.add_context_length(4096)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-6)
        for name, data, own in _gguf_tensors(kind, layers):
            writer.add_tensor(name, data, raw_dtype=own)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write


def _gguf_tensors(kind: Type, layers: int) -> Iterator[tuple[str, NDArray[Any], Type | None]]:
    norm = np.ones(HIDDEN, np.float32)
    yield "token_embd.weight", _bfloat16(VOCAB, HIDDEN)[1].view(np.uint8), Type.BF16
    yield "output_norm.weight", norm, None
    made = {own: _blocks(kind, rows, columns) for _, own, rows, columns in LINEARS.values()}
    for layer in range(layers):
        for own in NORMS.values():
            yield f"blk.{layer}.{own}.weight", norm, None
        for own, blocks in made.items():
            yield f"blk.{layer}.{own}.weight", blocks, kind


def _blocks(kind: Type, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random blocks, whose first numbers of 16 bits are scale and minimum."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (rows, columns // values, size), np.uint8)
    scales = {Type.Q8_0: [STD / 128], Type.Q4_0: [STD / 8], Type.Q4_K: [STD / 256, STD / 32]}
    halves = np.array(scales[kind], np.float16).view(np.uint8)
    blocks[..., : len(halves)] = halves
    return blocks.reshape(rows, -1)


def _write_safetensors(
    folder: Path,
    layers: int,
    linear: Callable[[str, str], dict[str, tuple[str, NDArray[Any]]]],
    config: dict[str, Any],
) -> None:
    norm = ("bfloat16", np.full(HIDDEN, 0x3F80, np.uint16))
    tensors = {"model.embed_tokens.weight": _bfloat16(VOCAB, HIDDEN), "model.norm.weight": norm}
    for layer in range(layers):
        begin = f"model.layers.{layer}"
        tensors |= {f"{begin}.{name}.weight": norm for name in NORMS}
        for part, (module, *_) in LINEARS.items():
            tensors |= linear(part, f"{begin}.{module}.{part}")
    described = {
        name: TensorSpec(
            dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, (dtype, array) in tensors.items()
    }
    serialize_file(described, folder / "model.safetensors", {"format": "pt"})
    own = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **config,
    }
    (folder / "config.json").write_text(json.dumps(own), encoding="utf-8")


def _bfloat16(rows: int, columns: int) -> tuple[str, NDArray[np.uint16]]:
    numbers = np.random.default_rng(0).standard_normal((rows, columns), np.float32) * STD
    return "bfloat16", (numbers.view(np.uint32) >> 16).astype(np.uint16)


#: By name.
FORMATS = {
    "bfloat16": Format(16, _write_bfloat16),
    "int4": Format(4 + 16 / GROUP, _write_int4),
    "Q4_0": Format(4.5, _write_gguf(Type.Q4_0)),
    "Q4_K": Format(4.5, _write_gguf(Type.Q4_K)),
    "Q8_0": Format(8.5, _write_gguf(Type.Q8_0)),
}
