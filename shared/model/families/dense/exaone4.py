"""EXAONE 4: norms behind attention and feed-forward; layers without a window do not rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.dense.olmo import BEHIND
from shared.model.families.naming import Naming
from shared.model.families.sizes import (
    FULL,
    decoder,
    read_activation,
    read_layer_types,
    read_sizes,
)
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "Exaone4ForCausalLM"
_WINDOW, _PATTERN = 4096, 4


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Without `sliding_window` all layers are full and rotate."""
    sizes = read_sizes(raw)
    full = sizes.attention(qk_norm=QkNorm.HEAD)
    layers = [full] * sizes.num_layers
    window = raw.get("sliding_window", _WINDOW)
    if window is not None:
        sliding, full = replace(full, window=int(window)), replace(full, rope=None)
        types = read_layer_types(raw, sizes.num_layers, full_every=_PATTERN)
        layers = [full if each == FULL else sliding for each in types]
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        layers,
        sizes.feed_forward(activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-5))),
        norms=NormPlace.AFTER,
    )


EXAONE4 = Family(
    architecture=_ARCHITECTURE,
    model_type="exaone4",
    describe=describe,
    names=Naming(parts=BEHIND).names,
)
