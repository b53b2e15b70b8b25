"""The sizes that most configs spell equally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from shared.errors import InternalError, ModelLoadError
from shared.model.rope import RopeDefaults, read_rope
from shared.model.spec.decoder import DecoderSpec, LayerSpec
from shared.model.spec.feed_forwards import Activation, ExpertsSpec, FeedForwardSpec
from shared.model.spec.mixers import AttentionSpec, Mixer, RecurrentSpec
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.model.rope import RopeConfig

FeedForward: TypeAlias = FeedForwardSpec | ExpertsSpec | None
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
#: Numbers of a layer's state: several times those of any model.
_LARGEST_STATE = 2**28
#: Maximum of entries in the table of rotary angles.
_MAX_ANGLES = 2**33
#: By name in a config.
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
CHUNKED = "chunked_attention"


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
        """Attention of these sizes; `own` are the other fields of the record."""
        sizes: dict[str, Any] = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope": self.rope,
        }
        return AttentionSpec(**(sizes | own))

    def feed_forward(self, **own: Any) -> FeedForwardSpec:
        """A feed-forward of these sizes; `own` are the other fields of the record."""
        return FeedForwardSpec(inner_size=self.intermediate_size, **own)


#: To be merged into the config of a family whose heads all have keys and values of their own, each
#: hidden_size / num_attention_heads wide.
MULTI_HEAD: Mapping[str, None] = {"num_key_value_heads": None, "head_dim": None}


def read_activation(raw: Mapping[str, Any], *keys: str, default: str = "silu") -> Activation:
    """The activation that a config names under the first of `keys` that it has.

    Raises:
        ModelLoadError: the activation is unknown.
    """
    keys = keys or ("hidden_act",)
    key, name = next(((key, raw[key]) for key in keys if raw.get(key)), (keys[0], default))
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelLoadError(f"{key} {name!r} is not supported; supported: {known}")
    return _ACTIVATIONS[name]


def read_window(raw: Mapping[str, Any], default: int) -> int:
    """Return the window of layers that have one, in tokens.

    Raises:
        ModelLoadError: it holds no token.
    """
    window = raw.get("sliding_window")
    if window is not None and int(window) < 1:
        raise ModelLoadError(f"sliding_window must be at least 1, not {window}")
    return default if window is None else int(window)


def read_layer_types(
    raw: Mapping[str, Any], num_layers: int, *, full_every: int | None = None, local: str = SLIDING
) -> Sequence[str]:
    """By layer: `full_attention` or `local`.

    full_every: which layers are full where a config does not say it, from the first one on.

    Raises:
        ModelLoadError: there are not as many as layers, or one is of another type.
    """
    types = raw.get("layer_types")
    if types is None:
        every = int(raw.get("sliding_window_pattern") or full_every or 1)
        types = [FULL if (number + 1) % every == 0 else local for number in range(num_layers)]
    if len(types) != num_layers:
        raise ModelLoadError(f"layer_types has {len(types)} entries for {num_layers} layers")
    unknown = set(types) - {FULL, local}
    if unknown:
        raise ModelLoadError(f"layer_types has {min(unknown)!r}; supported: {FULL}, {local}")
    return [str(each) for each in types]


def read_kinds(
    raw: Mapping[str, Any], num_layers: int, *, recurrent: str, full_every: int | None = None
) -> Sequence[bool]:
    """By layer: whether it keeps a state. Others attend to all tokens.

    recurrent: how a config names such a layer; full_every: which layers attend where a config does
    not say it, from the first one on.

    Raises:
        ModelLoadError: there are not as many as layers, or one is of another type.
    """
    types = raw.get("layer_types")
    if types is None:
        every = int(raw.get("full_attention_interval") or full_every or num_layers + 1)
        types = [FULL if (number + 1) % every == 0 else recurrent for number in range(num_layers)]
    if len(types) != num_layers:
        raise ModelLoadError(f"layer_types has {len(types)} entries for {num_layers} layers")
    names = {FULL: False, "attention": False, recurrent: True, LINEAR: True}
    unknown = set(types) - set(names)
    if unknown:
        raise ModelLoadError(f"layer_types has {min(unknown)!r}; supported: {FULL}, {recurrent}")
    return [names[each] for each in types]


def read_sizes(
    raw: Mapping[str, Any],
    *,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    rope: RopeDefaults | None = None,
    layer_type: str | None = None,
) -> Sizes:
    """From a config; `head_dim`, `num_kv_heads`, `rope` are for one that does not say it.

    layer_type: that whose rotation is read, if they differ by type.

    Raises:
        ModelLoadError: a size is out of range, or they do not fit together.
        KeyError, TypeError, ValueError: a value is missing or wrong.
    """
    hidden_size, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    num_layers = int(raw["num_hidden_layers"])
    # Before any object is made for each layer.
    check_size("num_layers", num_layers)
    head_dim = int(raw.get("head_dim") or head_dim or hidden_size // num_heads)
    check_size("head_dim", head_dim)
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
        rope=read_rope(
            raw,
            head_dim=head_dim,
            max_positions=max_positions,
            layer_type=layer_type,
            defaults=rope or RopeDefaults(),
        ),
    )
    for name in _LARGEST:
        check_size(name, getattr(sizes, name))
    if sizes.num_positions * head_dim > _MAX_ANGLES:
        raise ModelLoadError(f"there are too many positions: {sizes.num_positions}")
    if num_heads % sizes.num_kv_heads:
        raise ModelLoadError(f"{num_heads} heads cannot share {sizes.num_kv_heads} key/value heads")
    return sizes


def decoder(
    raw: Mapping[str, Any],
    architecture: str,
    sizes: Sizes,
    mixers: Iterable[Mixer],
    feed_forward: FeedForward | Sequence[FeedForward],
    *,
    norm: NormSpec | None = None,
    norms: NormPlace = NormPlace.BEFORE,
    residual_multiplier: float = 1.0,
    has_scale: bool = False,
    **own: Any,
) -> DecoderSpec:
    """Return a decoder whose layers differ in their mixers, or their feed-forwards, only.

    norm: by default a root-mean-square norm with `rms_norm_eps`; `own` are other fields of the
    record.

    Raises:
        ModelLoadError: the numbers of mixers and of layers differ.
    """
    mixers, num = _checked(mixers, sizes.num_layers), sizes.num_layers
    each = feed_forward if isinstance(feed_forward, Sequence) else [feed_forward] * num
    layers = tuple(
        LayerSpec(
            mixer=mixer,
            feed_forward=inner,
            norms=norms,
            residual_multiplier=residual_multiplier,
            has_scale=has_scale,
        )
        for mixer, inner in zip(mixers, each, strict=True)
    )
    fields: dict[str, Any] = {
        "is_tied": bool(raw.get("tie_word_embeddings", False)),
        "num_positions": sizes.num_positions,
    }
    return DecoderSpec(
        architecture=architecture,
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        layers=layers,
        norm=norm or NormSpec(eps=float(raw.get("rms_norm_eps", 1e-6))),
        max_position_embeddings=sizes.max_position_embeddings,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        eos_token_ids=_as_ids(raw.get("eos_token_id")),
        raw=raw,
        **(fields | own),
    )


def _checked(mixers: Iterable[Mixer], num_layers: int) -> list[Mixer]:
    """Return the mixers, if they are as many as the layers and read what is there."""
    found = list(mixers)
    if len(found) != num_layers:
        raise ModelLoadError(f"layer_types has {len(found)} entries for {num_layers} layers")
    for mixer in found:
        if isinstance(mixer, AttentionSpec):
            if mixer.window is not None and mixer.window < 1:
                raise ModelLoadError(f"sliding_window must be at least 1, not {mixer.window}")
            _check_source(found, mixer)
        elif isinstance(mixer, RecurrentSpec) and not 1 <= mixer.state_size <= _LARGEST_STATE:
            raise ModelLoadError(f"a state of {mixer.state_size} numbers")
    return found


def _check_source(mixers: list[Mixer], own: AttentionSpec) -> None:
    """Raise InternalError if a layer reads keys and values that are not there, or not its kind."""
    if own.kv_source is None:
        return
    source = mixers[own.kv_source]
    if not isinstance(source, AttentionSpec) or source.kv_source is not None:
        raise InternalError(f"layer {own.kv_source} has no keys and values for others")
    seen, its = ((m.window, m.is_chunked, m.kv_shape) for m in (own, source))
    if seen != its:
        raise InternalError(f"layer {own.kv_source} keeps {its}, another one reads {seen} of it")


def check_size(name: str, value: int) -> None:
    """Raise ModelLoadError if a size is less than 1, or more than those of any model."""
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
