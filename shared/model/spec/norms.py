"""The norms of a decoder: what they compute, and where a layer has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class NormKind(StrEnum):
    """What a norm computes of a row x."""

    #: x / sqrt(mean(x^2) + eps) * weight
    RMS = "rms"
    #: x / sqrt(mean(x^2) + eps) * (1 + weight)
    OFFSET_RMS = "offset_rms"
    #: (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
    LAYER = "layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """A norm over the last dimension."""

    eps: float
    kind: NormKind = NormKind.RMS
    has_weight: bool = True
    has_bias: bool = False


class NormPlace(StrEnum):
    """Where the norms n of a layer are. x is the residual stream."""

    #: x += mixer(n(x)), then x += feed_forward(n(x))
    BEFORE = "before"
    #: x += n(mixer(n(x))), then x += n(feed_forward(n(x)))
    AROUND = "around"
    #: x += n(mixer(x)), then x += n(feed_forward(x))
    AFTER = "after"
    #: x = n(x + mixer(x)), then x = n(x + feed_forward(x))
    SUM = "sum"
    #: y = n(x), then x += mixer(y) + feed_forward(y)
    PARALLEL = "parallel"
    #: x += mixer(n(x)) + feed_forward(n(x)), with a norm each
    PARALLEL_TWO = "parallel_two"
    #: x += mixer(n(x)), and no feed-forward
    ALONE = "alone"
    #: x += mixer(y), where y is what the mixer of the layer before reads, then
    #: x += feed_forward(n(x)): two mixers beside each other
    BESIDE = "beside"


#: By place: the norms that a layer has.
PLACES: Mapping[NormPlace, tuple[str, ...]] = {
    NormPlace.BEFORE: ("attention_norm", "mlp_norm"),
    NormPlace.AROUND: ("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"),
    NormPlace.AFTER: ("attention_output_norm", "mlp_output_norm"),
    NormPlace.SUM: ("attention_norm", "mlp_norm"),
    NormPlace.PARALLEL: ("attention_norm",),
    NormPlace.PARALLEL_TWO: ("attention_norm", "mlp_norm"),
    NormPlace.ALONE: ("attention_norm",),
    NormPlace.BESIDE: ("mlp_norm",),
}
