"""A decoder as the sequence of operations that the native library computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.library import Op, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shared.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """The weights of a layer: matrices of the library, and float32 norms; None: none."""

    attention_norm: int
    qkv: int
    q_norm: int | None
    k_norm: int | None
    output: int
    mlp_norm: int
    gate_up: int
    down: int


def build_program(spec: DecoderSpec, layers: Sequence[PackedLayer]) -> list[Operation]:
    """Return the operations of the first `len(layers)` layers of a decoder.

    After the last layer's keys and values only the wanted tokens are computed.
    """
    program: list[Operation] = []
    for number, layer in enumerate(layers):
        program += _layer(spec, number, layer, is_last=number == len(layers) - 1)
    program.append(Operation(op=Op.CAPTURE, layer=len(layers)))
    return program


def _layer(
    spec: DecoderSpec, number: int, packed: PackedLayer, *, is_last: bool
) -> Iterator[Operation]:
    group, place = spec.kv_place(number)
    window = spec.layers[number].mixer.window or 0
    yield Operation(op=Op.CAPTURE, layer=number)
    yield Operation(op=Op.NORM, first=packed.attention_norm)
    yield Operation(op=Op.PROJECT, matrix=packed.qkv)
    yield Operation(
        op=Op.ROTATE, first=packed.q_norm, second=packed.k_norm, kv_group=group, kv_place=place
    )
    if is_last:
        yield Operation(op=Op.NARROW)
    yield Operation(op=Op.ATTEND, window=window, kv_group=group, kv_place=place)
    yield Operation(op=Op.OUTPUT, matrix=packed.output)
    yield Operation(op=Op.NORM, first=packed.mlp_norm)
    yield Operation(op=Op.GATE, matrix=packed.gate_up)
    yield Operation(op=Op.DOWN, matrix=packed.down)
