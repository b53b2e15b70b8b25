"""Writes a checkpoint's own weights as GGUF, which is what llama.cpp reads. Needs no torch."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

#: By model type: the architecture, and its name in a file.
ARCHITECTURES = {
    "qwen2": (gguf.MODEL_ARCH.QWEN2, "qwen2"),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, "qwen3"),
    "gemma3_text": (gguf.MODEL_ARCH.GEMMA3, "gemma3"),
    "qwen3_moe": (gguf.MODEL_ARCH.QWEN3MOE, "qwen3moe"),
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)(\..+)")


def gguf_file(checkpoint: Path) -> Path:
    """The GGUF beside the checkpoint's folder, written now if it is not there. bfloat16 only.

    A GGUF file is itself.
    """
    if checkpoint.suffix == ".gguf":
        return checkpoint
    path = checkpoint.with_name(checkpoint.name + ".bf16.gguf")
    if not path.is_file():
        unfinished = path.with_suffix(".unfinished")
        _write(checkpoint, unfinished)
        unfinished.rename(path)
    return path


def _write(checkpoint: Path, path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    architecture, file_name = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(path), file_name)
    _add_shape(writer, config)
    _add_tokenizer(writer, checkpoint)
    for name, weights in _stacked(_tensors(checkpoint / "model.safetensors")):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None  # llama.cpp has these architectures
        if weights.ndim == 1:
            # llama.cpp adds and multiplies vectors in float32 only.
            values = (weights.astype(np.uint32) << 16).view(np.float32)
            # Gemma's norms multiply by one more than what is stored; GGUF stores the sum.
            writer.add_tensor(target, values + 1 if file_name == "gemma3" else values)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(target, weights.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "layer_types" in config:  # which layers they are, llama.cpp knows
        writer.add_sliding_window(config["sliding_window"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, checkpoint: Path) -> None:
    """Prompts are token ids, but a file without a tokenizer is no model for ours."""
    content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = content["model"]["vocab"]
    special = {token["content"] for token in content["added_tokens"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # Merges cannot be an empty array: one unused word, the last, is made of two others.
    writer.add_token_list([*list(vocabulary)[:-1], "!!"])
    writer.add_token_types([control if token in special else normal for token in vocabulary])
    writer.add_token_merges(["! !"])


def _stacked(
    tensors: Iterator[tuple[str, NDArray[np.uint16]]],
) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """The same with one tensor for all experts of a layer, under a name without their numbers."""
    experts: dict[str, dict[int, NDArray[np.uint16]]] = {}
    for name, weights in tensors:
        if (match := _EXPERT.fullmatch(name)) is None:
            yield name, weights
        else:
            layer, number, rest = match.groups()
            experts.setdefault(layer + rest, {})[int(number)] = weights
    for name, by_number in experts.items():
        yield name, np.stack([by_number[number] for number in sorted(by_number)])


def _tensors(path: Path) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Names and bfloat16 bits, as safetensors holds them: a length, a JSON header, the data."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    header_end = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:header_end].tobytes())
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, not BF16")
        begin, end = (header_end + offset for offset in entry["data_offsets"])
        yield name, data[begin:end].view("<u2").reshape(entry["shape"])
