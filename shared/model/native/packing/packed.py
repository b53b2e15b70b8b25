"""A model's packed weights: handles of the library's matrices, and addresses of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.native.kinds import Kind
    from kernels.native.structures import Experts, Latent, LayerInputs, Recurrent, WholeHeads


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNorm:
    """Addresses of float32 vectors; None: none."""

    weight: int | None = None
    bias: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFeedForward:
    """The matrices of a feed-forward."""

    #: Of a feed-forward with a gate, gates and ups.
    up: int
    down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedApart:
    """The shared one of experts that are apart from it, and their norms."""

    shared: PackedFeedForward
    shared_norm: PackedNorm
    router_norm: PackedNorm
    input_norm: PackedNorm
    output_norm: PackedNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts:
    """The record that the library reads; it refers to matrices and to `kept`."""

    record: Experts
    #: Arrays of the record.
    kept: tuple[object, ...]
    apart: PackedApart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAttention:
    """The weights of an attention with keys and values, except for its output."""

    qkv: int
    head_gate: int | None
    q_norm: PackedNorm
    k_norm: PackedNorm
    v_norm: PackedNorm
    cos_sin: int
    sinks: int | None
    #: Norms of queries and keys go over the heads of all ranks.
    whole: WholeHeads | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLatent:
    """The weights of a latent attention, except for its output."""

    #: None: queries are one product.
    q_down: int | None
    q_norm: PackedNorm
    q_up: int
    kv_down: int
    kv_norm: PackedNorm
    cos_sin: int
    #: It refers to matrices and to `kept`.
    record: Latent
    #: Arrays of the record.
    kept: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRecurrent:
    """The weights of a mixer with states, except for its output."""

    #: The record that the library reads; it refers to matrices and arrays.
    record: Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInputs:
    """What makes the inputs of layers."""

    projection: int
    norm: PackedNorm
    record: LayerInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInputGate:
    """The weights by which a layer takes its input."""

    gate: int
    up: int
    norm: PackedNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """The weights of a layer: matrices of the library, norms, and addresses of float32 arrays."""

    attention_norm: PackedNorm
    attention: PackedAttention | PackedLatent | PackedRecurrent
    output: int
    attention_output_norm: PackedNorm
    mlp_norm: PackedNorm
    #: None: the layer is a mixer alone.
    feed_forward: PackedFeedForward | PackedExperts | None
    mlp_output_norm: PackedNorm
    input_gate: PackedInputGate | None
    #: Factor of the stream at the end.
    scale: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """The packed weights of a model, for the library."""

    layers: tuple[PackedLayer, ...]
    norm: PackedNorm
    #: None: other stages have it.
    head: int | None
    #: The embedding's rows; None if they are the head's columns, or other stages have them.
    embedding: int | None
    embedding_kind: Kind
    #: Float32 rows by position; None: none.
    positions: int | None
    inputs: PackedInputs | None
