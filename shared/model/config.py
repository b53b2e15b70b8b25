"""What a checkpoint's config.json says, in one spelling."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families import FAMILIES, WindowRule
from shared.model.rope import RopeConfig, read_rope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.families import Family


#: The sizes and the largest that each may be: several times those of any model.
_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_layers": 2**12,
    "num_heads": 2**14,
    "num_kv_heads": 2**14,
    "head_dim": 2**14,
    "max_position_embeddings": 2**27,
    "num_positions": 2**27,
}
#: Entries of the table of rotary angles.
_MAX_ANGLES = 2**33


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
    #: How far the rotary angles reach: more than the above where RoPE is stretched.
    num_positions: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    #: Per layer: a token sees itself and the window-1 tokens before it; None: all.
    layer_windows: tuple[int | None, ...] = ()
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    #: config.json as it was read.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the positions cover."""
        return self.num_positions


def load_config(model_dir: Path) -> ModelConfig:
    """Read `config.json`, in the spelling of transformers 5 or of the files on the hub.

    Raises:
        ModelLoadError: missing or broken file, unsupported architecture, or a bad or missing key.
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
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def parse_config(raw: Any) -> ModelConfig:
    """Turn the parsed file into a ModelConfig.

    Raises:
        ModelLoadError: unsupported architecture, or a bad or missing key.
    """
    if not isinstance(raw, dict):
        raise ModelLoadError(f"the file holds a {type(raw).__name__}, not an object")
    try:
        architecture = _architecture(raw)
        _check_supported(raw)
        config = _parse(raw, architecture, FAMILIES[architecture])
    except KeyError as error:
        raise ModelLoadError(f"key {error} is missing") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelLoadError(f"a value is wrong: {error}") from error
    _check_shape(config, FAMILIES[architecture])
    return config


def _parse(raw: Mapping[str, Any], architecture: str, family: Family) -> ModelConfig:
    hidden_size, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    num_layers = int(raw["num_hidden_layers"])
    # Before anything is made for each of them.
    _check_size("num_layers", num_layers, _SIZES["num_layers"])
    head_dim = int(raw.get("head_dim") or family.default_head_dim or hidden_size // num_heads)
    _check_size("head_dim", head_dim, _SIZES["head_dim"])
    if head_dim % 2:
        raise ModelLoadError(f"head_dim {head_dim} is odd; rotary embedding needs halves")
    max_positions = int(raw["max_position_embeddings"])
    num_kv_heads = raw.get("num_key_value_heads", family.default_num_kv_heads)
    rope = read_rope(raw, head_dim=head_dim, max_positions=max_positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(num_heads if num_kv_heads is None else num_kv_heads),
        head_dim=head_dim,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope,
        max_position_embeddings=max_positions,
        num_positions=rope.num_positions,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=_flag(raw, "attention_bias", family.qkv_bias),
        output_bias=_flag(raw, "attention_bias", family.output_bias),
        mlp_bias=_flag(raw, "mlp_bias", family.mlp_bias),
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
    shown = ", ".join(map(str, names)) or "missing"
    raise ModelLoadError(
        f"architecture {shown} is not supported; supported: {', '.join(sorted(FAMILIES))}"
    )


def _check_supported(raw: Mapping[str, Any]) -> None:
    """What would silently compute something else must be refused."""
    if raw.get("quantization_config"):
        raise ModelLoadError(
            "quantization_config is set; stored quantized weights are not supported: load the "
            "unquantized checkpoint with --quantization int8, fp8 or int4"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"hidden_act {activation!r} is not supported; supported: silu")


def _check_shape(config: ModelConfig, family: Family) -> None:
    for name, largest in _SIZES.items():
        _check_size(name, getattr(config, name), largest)
    if config.num_positions * config.head_dim > _MAX_ANGLES:
        raise ModelLoadError(f"there are too many positions: {config.num_positions}")
    if config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{config.num_heads} heads cannot share {config.num_kv_heads} key/value heads"
        )
    if family.hidden_is_multiple_of_heads and config.hidden_size % config.num_heads:
        raise ModelLoadError(
            f"hidden_size {config.hidden_size} is not a multiple of {config.num_heads} heads, "
            f"as {config.architecture} requires"
        )
    if len(config.layer_windows) != config.num_layers:
        raise ModelLoadError(
            f"layer_types has {len(config.layer_windows)} entries for {config.num_layers} layers"
        )


def _check_size(name: str, value: int, largest: int) -> None:
    if not value >= 1:
        raise ModelLoadError(f"{name} must be at least 1, not {value}")
    if value > largest:
        raise ModelLoadError(f"{name} must be at most {largest}")


def _flag(raw: Mapping[str, Any], key: str, fixed: bool | None) -> bool:
    return bool(raw.get(key, False)) if fixed is None else fixed


def _layer_windows(raw: Mapping[str, Any], family: Family) -> tuple[int | None, ...]:
    num_layers = int(raw["num_hidden_layers"])
    window = raw.get("sliding_window", 4096)
    if family.window is WindowRule.PER_LAYER and not raw.get("use_sliding_window", False):
        window = None
    if window is None or family.window is WindowRule.NEVER:
        return (None,) * num_layers
    if family.window is WindowRule.EVERY_LAYER:
        return (int(window),) * num_layers
    types = raw.get("layer_types")
    if types is None:
        first = int(raw.get("max_window_layers", 28))
        types = ["sliding_attention" if n >= first else "" for n in range(num_layers)]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in types)


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(i, int) for i in ids):
        raise ValueError(f"eos_token_id must be token ids, not {value!r}")
    return ids
