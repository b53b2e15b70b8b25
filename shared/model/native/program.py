"""A decoder as the sequence of operations that the native library computes."""

from __future__ import annotations

from ctypes import pointer
from typing import TYPE_CHECKING

from kernels.native.kinds import Activation, HeadNorm, Op
from kernels.native.structures import Heads, Operation
from shared.model.native.packing.packed import (
    PackedApart,
    PackedAttention,
    PackedExperts,
    PackedFeedForward,
    PackedInputs,
    PackedLatent,
    PackedLayer,
    PackedNorm,
    PackedRecurrent,
)
from shared.model.spec.feed_forwards import ExpertsSpec
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.feed_forwards import FeedForwardSpec
    from shared.model.spec.mixers import AttentionSpec, LatentAttentionSpec

_PARALLEL = (NormPlace.PARALLEL, NormPlace.PARALLEL_TWO)


def build_program(
    spec: DecoderSpec, layers: Mapping[int, PackedLayer], inputs: PackedInputs | None
) -> list[Operation]:
    """Return the operations of some layers of a decoder, by number.

    After the last keys and values that are kept, or the last states, only the wanted tokens are
    computed. Of a rank's part, what mixers and feed-forwards return is added up.
    """
    program: list[Operation] = []
    last = max(layers)
    narrowing = max(filter(spec.keeps, layers), default=last)
    if inputs is not None:
        program += _inputs(inputs)
    for number, layer in layers.items():
        program += _layer(spec, number, layer, narrows=number == narrowing)
        program += _end(spec, number, layer, inputs)
    program.append(Operation(op=Op.CAPTURE, layer=last + 1))
    return program


def _layer(
    spec: DecoderSpec, number: int, packed: PackedLayer, *, narrows: bool
) -> Iterator[Operation]:
    own = spec.layers[number]
    yield Operation(op=Op.CAPTURE, layer=number)
    is_parallel = own.norms in _PARALLEL
    if own.norms is not NormPlace.BESIDE:  # what the layer before reads is still there
        yield _norm(packed.attention_norm)
    place = spec.kv_place(number)
    if isinstance(packed.attention, PackedLatent):
        mixer = spec.attentions[number]
        yield from _latent(mixer, packed.attention, place, narrows=narrows)
    elif isinstance(packed.attention, PackedRecurrent):
        yield from _recurrent(spec, packed.attention, place, narrows=narrows)
    else:
        yield from _attention(own.attention, packed.attention, place, narrows=narrows)
    output = Operation(op=Op.OUTPUT, matrix=packed.output)
    mixer_factor, feed_forward_factor = own.multipliers
    if own.feed_forward is None or packed.feed_forward is None:
        yield from _added(spec, output, packed.attention_output_norm, mixer_factor)
        return
    if is_parallel:
        # The first norm's operand is still there, unless rows have moved.
        if own.norms is NormPlace.PARALLEL_TWO:
            yield _norm(packed.mlp_norm)
        elif narrows:
            yield _norm(packed.attention_norm)
        up, down = _feed_forward(own.feed_forward, packed.feed_forward)
        yield up
        yield from _added(spec, output, packed.attention_output_norm, mixer_factor)
    else:
        yield from _added(spec, output, packed.attention_output_norm, mixer_factor)
        up, down = _feed_forward(own.feed_forward, packed.feed_forward)
        if isinstance(packed.feed_forward, PackedExperts) and packed.feed_forward.apart is not None:
            yield from _apart(spec, number, packed, packed.feed_forward.apart, (up, down))
            return
        yield _norm(packed.mlp_norm)
        yield up
    yield from _added(spec, down, packed.mlp_output_norm, feed_forward_factor)


def _inputs(packed: PackedInputs) -> Iterator[Operation]:
    yield Operation(op=Op.NORM)
    yield Operation(
        op=Op.INPUTS,
        matrix=packed.projection,
        first=packed.norm.weight,
        inputs=pointer(packed.record),
    )


def _end(
    spec: DecoderSpec, number: int, packed: PackedLayer, inputs: PackedInputs | None
) -> Iterator[Operation]:
    """What a layer does with its input, and its factor."""
    own, gate = spec.layer_inputs, packed.input_gate
    if own is not None and gate is not None and inputs is not None:
        yield Operation(op=Op.NORM)
        yield Operation(
            op=Op.GATE, matrix=gate.gate, activation=Activation[own.activation.name], paired=False
        )
        yield Operation(op=Op.WEIGH, layer=number, inputs=pointer(inputs.record))
        yield Operation(op=Op.DOWN, matrix=gate.up, apart=True)
        yield Operation(op=Op.ADD, first=gate.norm.weight, second=gate.norm.bias, scale=1.0)
    if packed.scale is not None:
        yield Operation(op=Op.SCALE, scale=packed.scale)


def _heads(mixer: AttentionSpec | LatentAttentionSpec) -> Heads:
    kinds, num_kv, dim = mixer.kv_shape
    return Heads(num=mixer.num_heads, num_kv=num_kv, dim=dim, kv_kinds=kinds)


def _latent(
    mixer: AttentionSpec | LatentAttentionSpec,
    packed: PackedLatent,
    kv_place: tuple[int, int],
    *,
    narrows: bool,
) -> Iterator[Operation]:
    """Rows are keys and values of one head, which all heads' queries share."""
    group, place = kv_place
    own, heads = pointer(packed.record), _heads(mixer)
    yield Operation(
        op=Op.LATENT_ROW,
        matrix=packed.kv_down,
        first=packed.kv_norm.weight,
        cos_sin=packed.cos_sin,
        attention=own,
        heads=heads,
        kv_group=group,
        kv_place=place,
    )
    if packed.q_down is not None:
        yield Operation(
            op=Op.LATENT_DOWN,
            matrix=packed.q_down,
            first=packed.q_norm.weight,
            attention=own,
            heads=heads,
        )
    yield Operation(
        op=Op.LATENT_QUERY,
        matrix=packed.q_up,
        cos_sin=packed.cos_sin,
        attention=own,
        heads=heads,
    )
    if narrows:
        yield Operation(op=Op.NARROW)
    yield Operation(op=Op.ATTEND, scale=mixer.scale, heads=heads, kv_group=group, kv_place=place)
    yield Operation(op=Op.LATENT_VALUE, attention=own, heads=heads)


def _recurrent(
    spec: DecoderSpec, packed: PackedRecurrent, kv_place: tuple[int, int], *, narrows: bool
) -> Iterator[Operation]:
    """All tokens change the states; behind the last ones only wanted results are kept."""
    group, place = kv_place
    if narrows:
        yield Operation(op=Op.NARROW)
    yield Operation(
        op=Op.RECUR,
        recurrent=pointer(packed.record),
        kv_group=group - spec.num_token_groups,
        kv_place=place,
    )


def _attention(
    own: AttentionSpec, packed: PackedAttention, kv_place: tuple[int, int], *, narrows: bool
) -> Iterator[Operation]:
    (group, place), heads = kv_place, _heads(own)
    yield Operation(op=Op.PROJECT, matrix=packed.qkv)
    rotate = Operation(
        op=Op.ROTATE,
        first=packed.q_norm.weight,
        second=packed.k_norm.weight,
        third=packed.v_norm.weight,
        cos_sin=packed.cos_sin,
        head_norm=HeadNorm[own.qk_norm.name] if own.qk_norm else HeadNorm.HEAD,
        limit=own.clip or 0.0,
        num_parts=len(own.projection_sizes),
        has_gate=own.has_gate,
        query_step=own.temperature.step if own.temperature else 0,
        query_scale=own.temperature.scale if own.temperature else 0.0,
        heads=heads,
        kv_group=group,
        kv_place=place,
    )
    if packed.whole is not None:
        rotate.whole = pointer(packed.whole)
        yield Operation(
            op=Op.SQUARES,
            limit=rotate.limit,
            num_parts=rotate.num_parts,
            has_gate=rotate.has_gate,
            whole=rotate.whole,
            heads=heads,
        )
    yield rotate
    if narrows:
        yield Operation(op=Op.NARROW)
    yield Operation(
        op=Op.ATTEND,
        matrix=packed.head_gate,
        first=packed.sinks,
        window=own.window or 0,
        chunked=own.is_chunked,
        scale=own.scale,
        limit=own.softcap or 0.0,
        has_gate=own.has_gate,
        heads=heads,
        kv_group=group,
        kv_place=place,
    )


def _norm(norm: PackedNorm) -> Operation:
    """The norm of a layer's rows."""
    return Operation(op=Op.NORM, first=norm.weight, second=norm.bias)


def _feed_forward(
    own: FeedForwardSpec | ExpertsSpec, packed: PackedFeedForward | PackedExperts
) -> tuple[Operation, Operation]:
    """Return what reads the norm's rows, and what adds the feed-forward's."""
    if isinstance(packed, PackedExperts):
        assert isinstance(own, ExpertsSpec)
        experts = pointer(packed.record)
        add = Operation(
            op=Op.EXPERTS,
            experts=experts,
            activation=Activation[own.expert.activation.name],
            paired=own.expert.is_gated,
            scale=own.expert.gate_multiplier,
        )
        return Operation(op=Op.ROUTE, experts=experts), add
    assert not isinstance(own, ExpertsSpec)
    up = Operation(
        op=Op.GATE,
        matrix=packed.up,
        activation=Activation[own.activation.name],
        paired=own.is_gated,
        scale=own.gate_multiplier,
    )
    return up, Operation(op=Op.DOWN, matrix=packed.down)


def _apart(
    spec: DecoderSpec,
    number: int,
    packed: PackedLayer,
    apart: PackedApart,
    routed: tuple[Operation, Operation],
) -> Iterator[Operation]:
    """See `ExpertsSpec.is_apart`; routed: what chooses, and what adds the chosen."""
    own = spec.layers[number]
    assert isinstance(own.feed_forward, ExpertsSpec)
    assert own.feed_forward.shared is not None
    up, down = _feed_forward(own.feed_forward.shared, apart.shared)
    route, add = routed
    down.apart = add.apart = True
    yield _norm(packed.mlp_norm)
    yield up
    yield down
    yield from _summed(spec)
    yield Operation(op=Op.KEEP, first=apart.shared_norm.weight, second=apart.shared_norm.bias)
    yield _norm(apart.router_norm)
    yield route
    yield _norm(apart.input_norm)
    yield add
    yield from _summed(spec)
    yield Operation(op=Op.MERGE, first=apart.output_norm.weight, second=apart.output_norm.bias)
    norm = packed.mlp_output_norm
    yield Operation(op=Op.ADD, first=norm.weight, second=norm.bias, scale=own.multipliers[1])


def _added(
    spec: DecoderSpec, product: Operation, norm: PackedNorm, factor: float
) -> Iterator[Operation]:
    """A product that is added to the residual: at once, if nothing is to be done with it."""
    product.apart = norm.weight is not None or factor != 1 or spec.is_divided
    yield product
    if product.apart:
        yield from _summed(spec)
        yield Operation(op=Op.ADD, first=norm.weight, second=norm.bias, scale=factor)


def _summed(spec: DecoderSpec) -> Iterator[Operation]:
    """What makes a sum of the parts that ranks have."""
    if spec.is_divided:
        yield Operation(op=Op.SUM)
