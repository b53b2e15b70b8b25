"""What a checkpoint's config.json says, in one spelling."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.rope import RopeConfig, read_rope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture differs from Llama."""

    qkv_bias: bool | None = None  # None: the config decides, as `attention_bias`
    output_bias: bool | None = None
    qk_norm: bool = False
    default_head_dim: int | None = None
    #: Value of an absent `sliding_window`.
    default_window: int | None = None
    #: The window counts only with `use_sliding_window`, from `max_window_layers` on.
    gated_window: bool = False


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False, output_bias=False, default_window=4096),
    "Qwen2ForCausalLM": Family(qkv_bias=True, output_bias=False, gated_window=True),
    "Qwen3ForCausalLM": Family(qk_norm=True, default_head_dim=128, gated_window=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and variants of a decoder of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    #: Per layer: a token sees itself and the window-1 tokens before it; None: all.
    layer_windows: tuple[int | None, ...] = ()
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the positions cover."""
        return self.max_position_embeddings


def load_config(model_dir: Path) -> ModelConfig:
    """Read `config.json`, in the spelling of transformers 4 or 5.

    Raises:
        ModelLoadError: missing or broken file, unsupported architecture, or a missing key.
    """
    path = model_dir / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    try:
        return parse_config(raw)
    except KeyError as error:
        raise ModelLoadError(f"{path} has no {error}") from error
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"{path} has a bad value: {error}") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn the parsed file into a ModelConfig."""
    architecture = _architecture(raw)
    family = FAMILIES[architecture]
    hidden_size, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    head_dim = raw.get("head_dim") or family.default_head_dim or hidden_size // num_heads
    bias = bool(raw.get("attention_bias", False))
    max_positions = int(raw["max_position_embeddings"])
    num_kv_heads = int(raw.get("num_key_value_heads") or num_heads)
    if num_heads % num_kv_heads:
        raise ModelLoadError(f"{num_heads} heads cannot share {num_kv_heads} key/value heads")
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=int(head_dim),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=read_rope(raw, head_dim=int(head_dim), max_positions=max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        layer_windows=_layer_windows(raw, family),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        eos_token_ids=_as_ids(raw.get("eos_token_id")),
        raw=raw,
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return str(name)
    raise ModelLoadError(f"architectures is {names}; supported are {', '.join(sorted(FAMILIES))}")


def _layer_windows(raw: Mapping[str, Any], family: Family) -> tuple[int | None, ...]:
    num_layers = int(raw["num_hidden_layers"])
    window = raw.get("sliding_window", family.default_window)
    if window is None or (family.gated_window and not raw.get("use_sliding_window", False)):
        return (None,) * num_layers
    types = raw.get("layer_types")
    if types is not None:
        return tuple(int(window) if kind == "sliding_attention" else None for kind in types)
    first = int(raw.get("max_window_layers", 28)) if family.gated_window else 0
    return tuple(int(window) if layer >= first else None for layer in range(num_layers))


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
