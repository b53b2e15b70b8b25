"""The linears of a layer, and of mixers with states all tensors, before a family names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.model.spec.mixers import DeltaSpec, GatedNorm, MambaSpec, ShortConvSpec
from shared.model.weight_map import Kind, Stored, WeightPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.model.spec.mixers import RecurrentSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """A `FusedLinear` of a layer."""

    part: str
    out_sizes: tuple[int, ...]
    in_size: int
    bias: bool
    #: By projection: which stored row is each of its rows; None or empty: they are as stored.
    rows: tuple[Sequence[int] | None, ...] = ()
    is_qkv: bool = False
    #: Its path in the layer, if that is not `part`; of experts with {}, or of one of them.
    path: str = ""
    #: 0: it is one linear, not one of each expert.
    num_experts: int = 0
    #: Of one tensor with all projections: which stored row is each row; None: they are as stored.
    fused_rows: Sequence[int] | None = None

    @property
    def module(self) -> str:
        """Its path in the layer."""
        return self.path or self.part


def recurrent_linears(own: RecurrentSpec, hidden: int, *, are_grouped: bool) -> Iterator[Linear]:
    """Yield the linears of a mixer with states. `are_grouped`: see `Naming.are_deltas_grouped`."""
    match own:
        case ShortConvSpec():
            yield Linear("attention.inputs", (own.width,) * 3, hidden, own.bias)
            yield Linear("attention.out", (hidden,), own.width, own.bias)
        case MambaSpec():
            projections = (own.inner_size, own.conv_width, own.num_heads)
            yield Linear("attention.inputs", projections, hidden, own.bias)
            yield Linear("attention.out", (hidden,), own.inner_size, own.bias)
        case DeltaSpec():
            inputs, rates = _grouped_rows(own) if are_grouped else (None, None)
            sizes = (own.conv_width, own.value_size)
            yield Linear("attention.inputs", sizes, hidden, bias=False, fused_rows=inputs)
            sizes = (own.num_heads,) * 2
            yield Linear("attention.rates", sizes, hidden, bias=False, fused_rows=rates)
            yield Linear("attention.out", (hidden,), own.value_size, bias=False)


def recurrent_values(
    own: RecurrentSpec, parts: Mapping[str, str], module: str
) -> dict[str, Stored]:
    """Return the tensors of a mixer with states that no product uses, by name.

    `module`: what the paths of the layer's modules begin with.
    """
    path = f"{module}attention"
    conv = parts["attention.conv"]
    found = {
        f"{conv}.weight": Stored(WeightPart(f"{path}.conv"), (own.conv_width, 1, own.kernel_size))
    }
    has_bias = own.bias if isinstance(own, ShortConvSpec) else False
    if isinstance(own, MambaSpec):
        has_bias = own.conv_bias
        found[parts["attention.skip"]] = Stored(WeightPart(f"{path}.skip"), (own.num_heads,))
    if has_bias:
        found[f"{conv}.bias"] = Stored(WeightPart(f"{path}.conv", Kind.BIAS), (own.conv_width,))
    if not isinstance(own, ShortConvSpec):
        size = own.inner_size if isinstance(own, MambaSpec) else own.value_dim
        if not isinstance(own, MambaSpec) or own.norm is not GatedNorm.NONE:
            found[f"{parts['attention.norm']}.weight"] = Stored(WeightPart(f"{path}.norm"), (size,))
        for name, kind in zip(
            parts["attention.decay"].split(), (Kind.WEIGHT, Kind.BIAS), strict=True
        ):
            found[name] = Stored(WeightPart(f"{path}.decay", kind), (own.num_heads,))
    return found


def _grouped_rows(own: DeltaSpec) -> tuple[Sequence[int], Sequence[int]]:
    """Which stored rows are queries, keys, values and gates, and which are rates and steps."""
    per_key = own.num_heads // own.num_key_heads
    values = per_key * own.value_dim
    starts = range(0, 2 * (own.key_size + own.value_size), 2 * (own.key_dim + values))
    ends = (0, own.key_dim, 2 * own.key_dim, 2 * own.key_dim + values)
    sizes = (own.key_dim, own.key_dim, values, values)
    inputs = [
        start + first + row
        for first, size in zip(ends, sizes, strict=True)
        for start in starts
        for row in range(size)
    ]
    pairs = range(0, 2 * own.num_heads, 2 * per_key)
    rates = [
        start + first + row for first in (0, per_key) for start in pairs for row in range(per_key)
    ]
    return inputs, rates
