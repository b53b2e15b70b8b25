"""StableLM: layer norms, a quarter of each head rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.norms import NormKind, NormPlace, NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURE = "StableLmForCausalLM"


def describe(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`."""
    if raw.get("qk_layernorm"):
        raise ModelLoadError("qk_layernorm is not supported for this architecture")
    sizes = read_sizes(raw, rope=RopeDefaults(rotated_share=0.25))
    attention = sizes.attention(qkv_bias=bool(raw.get("use_qkv_bias", False)))
    is_parallel = bool(raw.get("use_parallel_residual", False))
    eps = float(raw.get("layer_norm_eps", 1e-5))
    return decoder(
        raw,
        _ARCHITECTURE,
        sizes,
        [attention] * sizes.num_layers,
        sizes.feed_forward(activation=read_activation(raw)),
        norm=NormSpec(eps=eps, kind=NormKind.LAYER, has_bias=True),
        norms=NormPlace.PARALLEL if is_parallel else NormPlace.BEFORE,
    )


STABLELM = Family(
    architecture=_ARCHITECTURE, model_type="stablelm", describe=describe, names=Naming().names
)
