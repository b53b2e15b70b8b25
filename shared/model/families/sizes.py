"""The sizes that most configs spell equally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.rope import read_rope
from shared.model.spec import AttentionSpec, DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.model.rope import RopeConfig
    from shared.model.spec import GatedSpec

#: The sizes and the maximum of each: several times those of any model.
_LARGEST = {
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
#: Maximum of entries in the table of rotary angles.
_MAX_ANGLES = 2**33


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a decoder whose layers are equally large."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: RopeConfig

    @property
    def num_positions(self) -> int:
        """Number of positions of the rotary angles."""
        return self.rope.num_positions

    def attention(self, **own: Any) -> AttentionSpec:
        """Return attention of these sizes; `own` are the other fields of the record."""
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rope=self.rope,
            **own,
        )


def read_sizes(
    raw: Mapping[str, Any], *, head_dim: int | None = None, num_kv_heads: int | None = None
) -> Sizes:
    """Return the sizes in a config; `head_dim` and `num_kv_heads` are defaults.

    Raises:
        ModelLoadError: a size is out of range, or they do not fit together.
        KeyError, TypeError, ValueError: a value is missing or wrong.
    """
    hidden_size, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    num_layers = int(raw["num_hidden_layers"])
    # Before any object is made for each layer.
    _check("num_layers", num_layers)
    head_dim = int(raw.get("head_dim") or head_dim or hidden_size // num_heads)
    _check("head_dim", head_dim)
    if head_dim % 2:
        raise ModelLoadError(f"head_dim {head_dim} is odd; rotary embedding needs halves")
    max_positions = int(raw["max_position_embeddings"])
    kv_heads = raw.get("num_key_value_heads", num_kv_heads)
    sizes = Sizes(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=int(num_heads if kv_heads is None else kv_heads),
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rope=read_rope(raw, head_dim=head_dim, max_positions=max_positions),
    )
    for name in _LARGEST:
        _check(name, getattr(sizes, name))
    if sizes.num_positions * head_dim > _MAX_ANGLES:
        raise ModelLoadError(f"there are too many positions: {sizes.num_positions}")
    if num_heads % sizes.num_kv_heads:
        raise ModelLoadError(f"{num_heads} heads cannot share {sizes.num_kv_heads} key/value heads")
    return sizes


def decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    mixers: Iterable[AttentionSpec],
    feed_forward: GatedSpec,
) -> DecoderSpec:
    """Return a decoder whose layers differ in their mixers only.

    Raises:
        ModelLoadError: the numbers of mixers and of layers differ.
    """
    layers = tuple(LayerSpec(mixer=mixer, feed_forward=feed_forward) for mixer in mixers)
    if len(layers) != sizes.num_layers:
        raise ModelLoadError(f"layer_types has {len(layers)} entries for {sizes.num_layers} layers")
    return DecoderSpec(
        architecture=architecture,
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        layers=layers,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        max_position_embeddings=sizes.max_position_embeddings,
        num_positions=sizes.num_positions,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        eos_token_ids=_as_ids(raw.get("eos_token_id")),
        raw=raw,
    )


def _check(name: str, value: int) -> None:
    if not value >= 1:
        raise ModelLoadError(f"{name} must be at least 1, not {value}")
    if value > _LARGEST[name]:
        raise ModelLoadError(f"{name} must be at most {_LARGEST[name]}")


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(i, int) for i in ids):
        raise ValueError(f"eos_token_id must be token ids, not {value!r}")
    return ids
