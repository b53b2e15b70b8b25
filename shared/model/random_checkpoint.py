"""Writes Hugging Face checkpoints with random weights, of any supported architecture and size."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.config import parse_spec
from shared.model.checkpoint.files.checkpoint_files import INDEX_NAME, SINGLE_NAME
from shared.model.checkpoint.headers.further import further_names
from shared.model.families.registry import ARCHITECTURES, stored_names
from shared.model.loader import DTYPES
from shared.model.random_tokenizer import write_tokenizer
from shared.model.spec.norms import NormKind
from shared.model.weight_map import HEAD, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.norms import NormSpec
    from shared.model.weight_map import WeightPart


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """Description of a checkpoint. `extra` is merged into config.json: RoPE, windows, biases."""

    architecture: str = "llama"
    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    vocab_size: int = 512
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    #: Whether it has a layer that predicts further tokens. The others' weights are the same.
    has_further: bool = False
    dtype: str = "float32"
    num_shards: int = 1
    seed: int = 0
    #: Wide enough for a clear most likely token, so that greedy answers are stable.
    weight_std: float = 0.1
    extra: Mapping[str, Any] = field(default_factory=dict)


def rope_settings(rope_type: str, factor: float, max_position_embeddings: int) -> dict[str, Any]:
    """Return the `extra` of a checkpoint whose context a RoPE scheme stretches by `factor`."""
    if rope_type == "default":
        return {}
    scaling: dict[str, Any] = {"rope_type": rope_type, "factor": factor}
    extra: dict[str, Any] = {"rope_scaling": scaling}
    original = max(1, int(max_position_embeddings / factor))
    if rope_type in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = original
    if rope_type == "linear":  # such configs have the length before stretching
        extra["max_position_embeddings"] = original
    if rope_type == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return extra


def write_random_checkpoint(out: Path, spec: CheckpointSpec) -> None:
    """Write config, weights and tokenizer into `out`, which may exist; equal specs give equal
    bytes.

    The config comes last: a folder without it is no model. One that was there is gone before.

    Raises:
        ConfigError: an unknown architecture or dtype, numbers that do not fit together, or a
            directory that cannot be written.
    """
    if spec.architecture not in ARCHITECTURES:
        raise ConfigError(
            f"architecture {spec.architecture!r} is unknown; known: {sorted(ARCHITECTURES)}"
        )
    if spec.dtype not in DTYPES:
        raise ConfigError(f"dtype {spec.dtype!r} is unknown; known: {sorted(DTYPES)}")
    if spec.num_shards < 1:
        raise ConfigError(f"num_shards must be at least 1, not {spec.num_shards}")
    try:
        # Before a file is touched: the folder may have a model.
        parse_spec(_config_json(spec, 0, 0))
        out.mkdir(parents=True, exist_ok=True)
        # The tokenizer first: it may refuse the vocabulary, and weights take long.
        special = write_tokenizer(out, spec.vocab_size, spec.max_position_embeddings)
        raw = _config_json(spec, special.eos_id, special.pad_id)
        decoder = parse_spec(raw)
        config = out / "config.json"
        for old in (config, out / INDEX_NAME, *out.glob("model*.safetensors")):
            # Workers may have its pages.
            old.unlink(missing_ok=True)
        _write_weights(out, decoder, spec)
        config.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    except ModelLoadError as error:
        raise ConfigError(f"such a model cannot be: {error}") from error
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write the checkpoint to {out}: {error}") from error


def _config_json(spec: CheckpointSpec, eos_id: int, pad_id: int) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES[spec.architecture]],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "torch_dtype": spec.dtype,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        **({"num_nextn_predict_layers": 1} if spec.has_further else {}),
        **spec.extra,
    }


def _write_weights(out: Path, decoder: DecoderSpec, spec: CheckpointSpec) -> None:
    generator = torch.Generator().manual_seed(spec.seed)
    targets: dict[str, Tensor] = {}
    stored_tensors = dict(stored_names(decoder))
    if spec.has_further:
        stored_tensors |= further_names(decoder)
    for name, stored in stored_tensors.items():
        if stored.part == HEAD and decoder.is_tied:
            continue
        # Norms differ from one, so that a norm in the wrong place shows.
        mean = 1.0 if _multiplies(stored.part, decoder.norm) else 0.0
        noise = torch.empty(stored.shape).normal_(mean, spec.weight_std, generator=generator)
        targets[name] = noise.to(DTYPES[spec.dtype])
    names = list(targets)
    if spec.num_shards == 1:
        _save(targets, out / SINGLE_NAME)
        return
    weight_map: dict[str, str] = {}
    for shard in range(spec.num_shards):
        file = f"model-{shard + 1:05d}-of-{spec.num_shards:05d}.safetensors"
        first, end = (len(names) * n // spec.num_shards for n in (shard, shard + 1))
        own = names[first:end]
        _save({name: targets[name] for name in own}, out / file)
        weight_map |= dict.fromkeys(own, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in targets.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / INDEX_NAME).write_text(json.dumps(index, indent=2))


def _multiplies(part: WeightPart, norm: NormSpec) -> bool:
    """Whether it is a factor, as a norm's weight, that is 1 where it changes nothing."""
    if part.kind in (Kind.SCALE, Kind.ROUTER_SCALE, Kind.EXPERT_SCALE):
        return True
    is_weight = part.module.endswith("norm") and part.kind is Kind.WEIGHT
    return is_weight and norm.kind is not NormKind.OFFSET_RMS


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file(dict(tensors), path, metadata={"format": "pt"})
