"""Writes checkpoints as GGUF files, with llama.cpp's own library."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

#: By what a tensor's name says last, in every architecture.
_PLAIN = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OTHERS = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
}
#: By type, where blocks have float16 numbers: these, so that weights are below 0.2.
_HALVES: dict[Type, dict[int, float]] = {
    Type.Q4_K: {0: 2e-4, 2: 15e-4},
    Type.Q6_K: {208: 4e-5},
    Type.IQ4_NL: {0: 1e-3},
    Type.IQ4_XS: {0: 4e-5},
}
#: llama.cpp's name by `model_type`.
NAMES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt_oss": "gpt-oss",
}


def export(
    checkpoint: Path,
    path: Path,
    *,
    kind: Callable[[str, Tensor], Type] = lambda name, tensor: Type.F32,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a checkpoint's config and tensors to a GGUF file.

    kind: the type of a matrix, by its name in the checkpoint; extra: tensors that it has not.
    """
    raw = json.loads((checkpoint / "config.json").read_text())
    name = NAMES[raw["model_type"]]
    writer = gguf.GGUFWriter(path, name)
    write_config(writer, raw)
    if tokenizer is not None:
        tokenizer(writer)
    for own, data, its_kind in stored(raw, load_file(checkpoint / "model.safetensors"), kind):
        if its_kind in (Type.F32, Type.F16):
            writer.add_tensor(own, data)
        else:
            writer.add_tensor(own, data, raw_dtype=its_kind)
    for own, data in (extra or {}).items():
        writer.add_tensor(own, data)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what a writer has got."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(checkpoint: Path, writer: gguf.GGUFWriter) -> None:
    """Add a byte-level tokenizer that cuts as GPT-2, and its chat template."""
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    kinds = {each["content"]: 3 if each["special"] else 4 for each in content["added_tokens"]}
    vocab = {each["content"]: each["id"] for each in content["added_tokens"]}
    vocab |= content["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, 1) for token in tokens])
    merges = content["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    for key, add in (
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_eot_token_id),
        ("bos_token", writer.add_bos_token_id),
    ):
        token = config.get(key)
        if token is not None:
            add(vocab[token["content"] if isinstance(token, dict) else token])
    writer.add_chat_template(config["chat_template"])


def split(whole: Path, folder: Path, count: int) -> list[Path]:
    """Write a file's tensors to several; the first one has the values."""
    folder.mkdir()
    reader = gguf.GGUFReader(whole)
    paths = []
    for number in range(count):
        path = folder / f"{whole.stem}-{number + 1:05d}-of-{count:05d}.gguf"
        name = reader.fields["general.architecture"].contents()
        writer = gguf.GGUFWriter(path, name)
        for key, field in reader.fields.items() if number == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                writer.add_key_value(key, field.contents(), field.types[0])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)
        paths.append(path)
    return paths


def edit_header(
    path: Path,
    *,
    tensor_type: int | None = None,
    offset: int | None = None,
    dims: tuple[int, int] | None = None,
    architecture: str | None = None,
    num_tensors: int | None = None,
    num_values: int | None = None,
) -> None:
    """Change what a file says of `blk.0.ffn_up.weight`, or of the whole, but not its length."""
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    place = data.index(name) + len(name) + 4
    for at, form, value in (
        (place, "<QQ", dims),
        (place + 16, "<I", tensor_type),
        (place + 20, "<Q", offset),
        (8, "<Q", num_tensors),
        (16, "<Q", num_values),
    ):
        if value is not None:
            struct.pack_into(form, data, at, *(value if isinstance(value, tuple) else (value,)))
    if architecture is not None:
        own = b"general.architecture"
        at = data.index(own) + len(own) + 12
        data[at : at + len(architecture)] = architecture.encode()
    path.write_bytes(data)


def edit_value(path: Path, key: str, value: int) -> None:
    """Change a whole number of a file's header."""
    data = bytearray(path.read_bytes())
    own = struct.pack("<Q", len(key)) + key.encode()
    struct.pack_into("<I", data, data.index(own) + len(own) + 4, value)
    path.write_bytes(data)


def write_config(writer: gguf.GGUFWriter, raw: dict[str, Any]) -> None:
    """The values of an architecture."""
    rope = {**raw, **(raw.get("rope_parameters") or {})}
    rope = {**rope, **(rope.get("full_attention") or {})}
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if raw.get("head_dim"):
        writer.add_key_length(raw["head_dim"])
        writer.add_value_length(raw["head_dim"])
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if raw.get("sliding_window"):
        writer.add_sliding_window(raw["sliding_window"])
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("num_local_experts", writer.add_expert_count),
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
    ):
        if raw.get(key):
            add(raw[key])


def stored(
    raw: dict[str, Any], tensors: dict[str, Tensor], kind: Callable[[str, Tensor], Type]
) -> list[tuple[str, np.ndarray, Type]]:
    """Name, numbers or blocks, and type of every tensor, as llama.cpp's converter makes them."""
    stacks: dict[str, dict[int, np.ndarray]] = {}
    kinds: dict[str, Type] = {}
    found: dict[str, np.ndarray] = {}
    if raw["model_type"] == "gpt_oss":
        tensors = dict(_apart(tensors))
    for name, tensor in tensors.items():
        data = _arranged(raw, name, tensor)
        own, expert = _own_name(raw, name)
        kinds[own] = kind(name, tensor) if tensor.ndim > 1 and data.ndim > 1 else Type.F32
        if expert is None:
            found[own] = data
        else:
            stacks.setdefault(own, {})[expert] = data
    for own, each in stacks.items():
        found[own] = np.stack([each[number] for number in range(len(each))])
    return [(own, _encoded(data, kinds[own]), kinds[own]) for own, data in found.items()]


def _encoded(data: np.ndarray, kind: Type) -> np.ndarray:
    if kind in _HALVES:
        return _random_blocks(data.shape, kind)
    return np.ascontiguousarray(gguf.quantize(np.ascontiguousarray(data), kind))


def _random_blocks(shape: tuple[int, ...], kind: Type) -> np.ndarray:
    """Numbers of a type that the library reads and does not write, about as large as weights."""
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(shape)
    count = shape[-1] // num_values
    blocks = random.integers(0, 256, (*shape[:-1], count, num_bytes), np.uint8)
    for start, value in _HALVES[kind].items():
        blocks[..., start : start + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], count * num_bytes)


def _arranged(raw: dict[str, Any], name: str, tensor: Tensor) -> np.ndarray:
    data = tensor.float().numpy()
    if NAMES[raw["model_type"]] == "llama":
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, key in heads.items():
            if f".{part}." in name:
                pieces = data.reshape(raw[key], 2, -1, *data.shape[1:])
                data = pieces.swapaxes(1, 2).reshape(data.shape)
    if raw["model_type"].startswith("gemma") and "norm" in name:
        data = data + 1
    return data.squeeze()


def _apart(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The experts of gpt-oss as those of others: gates and ups apart, each matrix [out, in]."""
    for name, tensor in tensors.items():
        if ".experts." not in name:
            yield name.replace("mlp.router", "mlp.gate"), tensor
            continue
        stem, _, part = name.rpartition(".experts.")
        suffix = "bias" if part.endswith("_bias") else "weight"
        full = tensor if suffix == "bias" else tensor.mT
        pieces = {"down_proj": full}
        if part.startswith("gate_up"):
            pieces = {"gate_proj": full[:, ::2], "up_proj": full[:, 1::2]}
        for own, piece in pieces.items():
            for number, each in enumerate(piece):
                yield f"{stem}.experts.{number}.{own}.{suffix}", each


def _own_name(raw: dict[str, Any], name: str) -> tuple[str, int | None]:
    if name.endswith("self_attn.sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight", None
    stem, _, suffix = name.rpartition(".")
    if stem in _PLAIN:
        return f"{_PLAIN[stem]}.{suffix}", None
    _, _, number, part = stem.split(".", 3)
    part = part.replace("block_sparse_moe", "mlp")
    expert = None
    if ".experts." in part:
        _, _, expert_number, which = part.split(".")
        expert = int(expert_number)
        which = {"w1": "gate", "w3": "up", "w2": "down"}.get(which, which.removesuffix("_proj"))
        own = f"ffn_{which}_exps"
    else:
        table = {**_PLAIN, **_OTHERS.get(NAMES[raw["model_type"]], {})}
        own = table[part]
    return f"blk.{number}.{own}.{suffix}", expert
