"""A decoder as the sequence of operations that the native library computes."""

from __future__ import annotations

from ctypes import pointer
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.library import (
    Activation,
    Experts,
    HeadNorm,
    Latent,
    Op,
    Operation,
    Recurrent,
)
from shared.model.spec import ExpertsSpec, NormPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shared.model.mixers import AttentionSpec
    from shared.model.spec import DecoderSpec, FeedForwardSpec, LayerSpec

_PARALLEL = (NormPlace.PARALLEL, NormPlace.PARALLEL_TWO)


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
class PackedExperts:
    """The record that the library reads; it refers to matrices and to `kept`."""

    record: Experts
    #: Arrays of the record.
    kept: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAttention:
    """The weights of an attention with keys and values, except for its output."""

    qkv: int
    q_norm: PackedNorm
    k_norm: PackedNorm
    cos_sin: int
    sinks: int | None


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


def build_program(
    spec: DecoderSpec, layers: Sequence[PackedLayer], numbers: Sequence[int]
) -> list[Operation]:
    """Return the operations of a decoder with those of its layers that have these numbers.

    After the last layer's keys and values, or its states, only the wanted tokens are computed.
    """
    program: list[Operation] = []
    for number in numbers:
        program += _layer(spec, number, layers[number], is_last=number == numbers[-1])
    program.append(Operation(op=Op.CAPTURE, layer=len(layers)))
    return program


def _layer(
    spec: DecoderSpec, number: int, packed: PackedLayer, *, is_last: bool
) -> Iterator[Operation]:
    own = spec.layers[number]
    yield Operation(op=Op.CAPTURE, layer=number)
    is_parallel = own.norms in _PARALLEL
    routes = isinstance(packed.feed_forward, PackedExperts)
    yield _norm(packed.attention_norm, for_router=is_parallel and routes)
    place = spec.kv_place(number)
    if isinstance(packed.attention, PackedLatent):
        scale = spec.attentions[number].scale
        yield from _latent(scale, packed.attention, place, is_last=is_last)
    elif isinstance(packed.attention, PackedRecurrent):
        yield from _recurrent(spec, packed.attention, place, is_last=is_last)
    else:
        yield from _attention(own.attention, packed.attention, place, is_last=is_last)
    output = Operation(op=Op.OUTPUT, matrix=packed.output)
    if own.feed_forward is None or packed.feed_forward is None:
        yield from _added(own, output, packed.attention_output_norm)
        return
    if is_parallel:
        # The first norm's operand is still there, unless rows have moved.
        if own.norms is NormPlace.PARALLEL_TWO:
            yield _norm(packed.mlp_norm, for_router=routes)
        elif is_last:
            yield _norm(packed.attention_norm, for_router=routes)
        up, down = _feed_forward(own.feed_forward, packed.feed_forward)
        yield up
        if routes:  # they read the norm's operand, which the attention's output replaces
            yield from _added(own, down, packed.mlp_output_norm)
            yield from _added(own, output, packed.attention_output_norm)
            return
        yield from _added(own, output, packed.attention_output_norm)
    else:
        yield from _added(own, output, packed.attention_output_norm)
        up, down = _feed_forward(own.feed_forward, packed.feed_forward)
        yield _norm(packed.mlp_norm, for_router=routes)
        yield up
    yield from _added(own, down, packed.mlp_output_norm)


def _latent(
    scale: float, packed: PackedLatent, kv_place: tuple[int, int], *, is_last: bool
) -> Iterator[Operation]:
    """Rows are keys and values of one head, which all heads' queries share."""
    group, place = kv_place
    own = pointer(packed.record)
    yield Operation(
        op=Op.LATENT_ROW,
        matrix=packed.kv_down,
        first=packed.kv_norm.weight,
        cos_sin=packed.cos_sin,
        attention=own,
        kv_group=group,
        kv_place=place,
    )
    if packed.q_down is not None:
        yield Operation(
            op=Op.LATENT_DOWN,
            matrix=packed.q_down,
            first=packed.q_norm.weight,
            attention=own,
        )
    yield Operation(op=Op.LATENT_QUERY, matrix=packed.q_up, cos_sin=packed.cos_sin, attention=own)
    if is_last:
        yield Operation(op=Op.NARROW)
    yield Operation(op=Op.ATTEND, scale=scale, kv_group=group, kv_place=place)
    yield Operation(op=Op.LATENT_VALUE, attention=own)


def _recurrent(
    spec: DecoderSpec, packed: PackedRecurrent, kv_place: tuple[int, int], *, is_last: bool
) -> Iterator[Operation]:
    """All tokens change the states; of the last layer's results only the wanted ones are kept."""
    group, place = kv_place
    if is_last:
        yield Operation(op=Op.NARROW)
    yield Operation(
        op=Op.RECUR,
        recurrent=pointer(packed.record),
        kv_group=group - spec.num_token_groups,
        kv_place=place,
    )


def _attention(
    own: AttentionSpec, packed: PackedAttention, kv_place: tuple[int, int], *, is_last: bool
) -> Iterator[Operation]:
    group, place = kv_place
    yield Operation(op=Op.PROJECT, matrix=packed.qkv)
    yield Operation(
        op=Op.ROTATE,
        first=packed.q_norm.weight,
        second=packed.k_norm.weight,
        cos_sin=packed.cos_sin,
        head_norm=HeadNorm[own.qk_norm.name] if own.qk_norm else HeadNorm.HEAD,
        limit=own.clip or 0.0,
        has_gate=own.has_gate,
        query_step=own.temperature.step if own.temperature else 0,
        query_scale=own.temperature.scale if own.temperature else 0.0,
        kv_group=group,
        kv_place=place,
    )
    if is_last:
        yield Operation(op=Op.NARROW)
    yield Operation(
        op=Op.ATTEND,
        first=packed.sinks,
        window=own.window or 0,
        chunked=own.is_chunked,
        scale=own.scale,
        limit=own.softcap or 0.0,
        has_gate=own.has_gate,
        kv_group=group,
        kv_place=place,
    )


def _norm(norm: PackedNorm, *, for_router: bool = False) -> Operation:
    """The norm of a layer's rows; a router reads them before they are narrowed."""
    return Operation(op=Op.NORM, first=norm.weight, second=norm.bias, apart=for_router)


def _feed_forward(
    own: FeedForwardSpec | ExpertsSpec, packed: PackedFeedForward | PackedExperts
) -> tuple[Operation, Operation]:
    """Return what reads the norm's rows, and what adds the feed-forward's."""
    if isinstance(packed, PackedExperts):
        assert isinstance(own, ExpertsSpec)
        experts = pointer(packed.record)
        activation = Activation[own.expert.activation.name]
        return (
            Operation(op=Op.ROUTE, experts=experts),
            Operation(op=Op.EXPERTS, experts=experts, activation=activation),
        )
    assert not isinstance(own, ExpertsSpec)
    up = Operation(
        op=Op.GATE,
        matrix=packed.up,
        activation=Activation[own.activation.name],
        paired=own.is_gated,
    )
    return up, Operation(op=Op.DOWN, matrix=packed.down)


def _added(own: LayerSpec, product: Operation, norm: PackedNorm) -> Iterator[Operation]:
    """A product that is added to the residual: at once, if nothing is to be done with it."""
    product.apart = norm.weight is not None or own.residual_multiplier != 1
    yield product
    if product.apart:
        yield Operation(
            op=Op.ADD, first=norm.weight, second=norm.bias, scale=own.residual_multiplier
        )
