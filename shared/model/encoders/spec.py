"""The computation of an encoder: a record that families make of a config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.model.weight_map import Kind, Stored, WeightMap, WeightPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shared.model.rope import RopeConfig
    from shared.model.spec.decoder import LearnedPositions
    from shared.model.spec.feed_forwards import FeedForwardSpec
    from shared.model.spec.norms import NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayerSpec:
    """What layers of an encoder may differ in."""

    #: A token sees those that are closer; None: all of its text.
    window: int | None = None
    #: None: queries and keys are not rotated.
    rope: RopeConfig | None = None
    #: Whether attention reads normalised rows, where norms come before.
    has_first_norm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """Embedding, layers of attention and feed-forward, norms."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    feed_forward: FeedForwardSpec
    layers: tuple[EncoderLayerSpec, ...]
    norm: NormSpec
    #: Where norms n are: x = n(x + mixer(x)); else x += mixer(n(x)), and a norm behind all layers.
    is_post_norm: bool
    attention_bias: bool
    #: Rows that are added by position.
    positions: LearnedPositions | None = None
    #: Rows that are added by the part of a text that a token belongs to.
    num_token_types: int = 0
    max_len: int
    #: Dtype of the stored weights.
    dtype: str = "float32"
    #: Names of stored tensors by part of a layer, in which {} is its number.
    layer_names: Mapping[str, str]
    #: Of the other parts.
    names: Mapping[str, str]
    #: config.json as read.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.hidden_size // self.num_heads

    def stored_names(self) -> WeightMap:
        """Return the tensors of a checkpoint, by name, without what such names may begin with."""
        found: dict[str, Stored] = {}
        hidden = self.hidden_size
        tables = [("", Kind.EMBEDDING, self.vocab_size)]
        if self.positions is not None:
            tables.append(("", Kind.POSITIONS, self.positions.num_rows))
        if self.num_token_types:
            tables.append(("token_types", Kind.WEIGHT, self.num_token_types))
        for module, kind, rows in tables:
            name = self.names[module or kind.value]
            found[name] = Stored(WeightPart(module, kind), (rows, hidden))
        for module in ("embedding_norm", "norm"):
            if module in self.names:
                found |= self._norm(self.names[module], module)
        for number, layer in enumerate(self.layers):
            own = {part: name.format(number) for part, name in self.layer_names.items()}
            for part, name in own.items():
                if part == "attention_norm" and not layer.has_first_norm:
                    continue
                module = f"layers.{number}.{part}"
                if part.endswith("norm"):
                    found |= self._norm(name, module)
                else:
                    found |= dict(self._linear(part, name, module))
        return found

    def _norm(self, name: str, module: str) -> dict[str, Stored]:
        found = {f"{name}.weight": Stored(WeightPart(module), (self.hidden_size,))}
        if self.norm.has_bias:
            bias = WeightPart(module, Kind.BIAS)
            found[f"{name}.bias"] = Stored(bias, (self.hidden_size,))
        return found

    def _linear(self, part: str, names: str, module: str) -> Iterator[tuple[str, Stored]]:
        """Yield the tensors of a linear; several projections have several names."""
        out_sizes, in_size, bias = self.linear_sizes(part)
        each = names.split()
        whole = len(each) == 1
        sizes = (sum(out_sizes),) if whole else out_sizes
        for index, (name, size) in enumerate(zip(each, sizes, strict=True)):
            at = None if whole else index
            yield f"{name}.weight", Stored(WeightPart(module, index=at), (size, in_size))
            if bias:
                yield f"{name}.bias", Stored(WeightPart(module, Kind.BIAS, at), (size,))

    def linear_sizes(self, part: str) -> tuple[tuple[int, ...], int, bool]:
        """Return outputs of each projection of a linear, its inputs, and if it has biases."""
        hidden, own = self.hidden_size, self.feed_forward
        match part:
            case "qkv":
                return (hidden,) * 3, hidden, self.attention_bias
            case "output":
                return (hidden,), hidden, self.attention_bias
            case "up":
                return (own.inner_size,) * (2 if own.is_gated else 1), hidden, own.bias
            case _:
                return (hidden,), own.inner_size, own.bias
