"""The computation of a decoder: records that families make of a config and executors follow.

Nothing here names a tensor of a checkpoint or a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.model.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention with rotary positions."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    #: A token sees itself and the window-1 tokens before it; None: all.
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    #: Whether queries and keys are normalised, each head separately.
    qk_norm: bool = False

    @property
    def query_size(self) -> int:
        """Elements of all heads' queries."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all heads' keys, and of their values."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedSpec:
    """A gated feed-forward: down(silu(gate(x)) * up(x))."""

    inner_size: int
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A mixer and a feed-forward, each after a norm and with a residual."""

    mixer: AttentionSpec
    feed_forward: GatedSpec


def group_layers(layers: Sequence[LayerSpec]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of layers that share a block table.

    Today all do, whatever their windows.
    """
    return (tuple(range(len(layers))),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A whole decoder: embedding, layers, norm, output head."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    #: Epsilon of every RMS norm.
    norm_eps: float
    #: Whether the output head is the embedding.
    is_tied: bool = False
    max_position_embeddings: int
    #: Positions of the rotary angles: more than the above if RoPE is stretched.
    num_positions: int
    #: Dtype of the stored weights.
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    #: config.json as read.
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the positions cover."""
        return self.num_positions

    @property
    def kv_groups(self) -> tuple[tuple[int, ...], ...]:
        """By group of layers that share a block table: the layers, ascending."""
        return group_layers(self.layers)

    def kv_place(self, layer: int) -> tuple[int, int]:
        """Return the group of a layer, and its index among that group's layers."""
        for number, layers in enumerate(self.kv_groups):
            if layer in layers:
                return number, layers.index(layer)
        raise InternalError(f"layer {layer} of {self.architecture} is in no KV group")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """By layer: its window."""
        return tuple(layer.mixer.window for layer in self.layers)

    @property
    def attention(self) -> AttentionSpec:
        """The common description of all layers' attention, with the window None.

        Raises:
            InternalError: they differ in more. Executors that use this compute equal layers only.
        """
        first, *others = (replace(layer.mixer, window=None) for layer in self.layers)
        if any(other != first for other in others):
            raise InternalError(f"the layers of {self.architecture} attend in different ways")
        return first

    @property
    def feed_forward(self) -> GatedSpec:
        """All layers' feed-forward. Raises as `attention`."""
        first, *others = (layer.feed_forward for layer in self.layers)
        if any(other != first for other in others):
            raise InternalError(f"the layers of {self.architecture} feed forward differently")
        return first
