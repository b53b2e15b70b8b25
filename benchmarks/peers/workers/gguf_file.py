"""Writes a checkpoint's own weights as GGUF, which is what llama.cpp reads. Needs no torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def gguf_file(checkpoint: Path) -> Path:
    """The GGUF beside the checkpoint's folder, written now if it is not there. bfloat16 only."""
    path = checkpoint.with_name(checkpoint.name + ".bf16.gguf")
    if not path.is_file():
        unfinished = path.with_suffix(".unfinished")
        _write(checkpoint, unfinished)
        unfinished.rename(path)
    return path


def _write(checkpoint: Path, path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(str(path), config["model_type"])
    _add_shape(writer, config)
    for name, weights in _tensors(checkpoint / "model.safetensors"):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if weights.ndim == 1:
            # llama.cpp adds and multiplies vectors in float32 only.
            writer.add_tensor(target, (weights.astype(np.uint32) << 16).view(np.float32))
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
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    # Prompts are token ids: no vocabulary is needed but its size.
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])


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
