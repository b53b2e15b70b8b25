"""Families that differ from Llama in a default or a bias: Seed-OSS, ERNIE 4.5, Arcee, Helium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.families.base import Family
from shared.model.families.naming import Naming
from shared.model.families.sizes import decoder, read_activation, read_sizes
from shared.model.rope import RopeDefaults
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.spec.decoder import DecoderSpec

_SEED_OSS, _ERNIE = "SeedOssForCausalLM", "Ernie4_5ForCausalLM"
_ARCEE, _HELIUM = "ArceeForCausalLM", "HeliumForCausalLM"


def describe_seed_oss(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Queries, keys and values have biases, the output need not."""
    sizes = read_sizes(raw, head_dim=128)
    attention = sizes.attention(
        qkv_bias=bool(raw.get("attention_bias", True)),
        output_bias=bool(raw.get("attention_out_bias", False)),
    )
    feed_forward = sizes.feed_forward(
        bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)
    )
    return decoder(raw, _SEED_OSS, sizes, [attention] * sizes.num_layers, feed_forward)


def describe_ernie(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Pairs of neighbours are rotated."""
    rope = RopeDefaults(theta=500_000.0, is_interleaved=True)
    sizes = read_sizes(raw, head_dim=128, rope=rope)
    bias = bool(raw.get("use_bias", False))
    return decoder(
        raw,
        _ERNIE,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        sizes.feed_forward(bias=bias, activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-5))),
        is_tied=bool(raw.get("tie_word_embeddings", True)),
    )


def describe_arcee(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Its feed-forward has no gate."""
    sizes = read_sizes(raw)
    bias = bool(raw.get("attention_bias", False))
    return decoder(
        raw,
        _ARCEE,
        sizes,
        [sizes.attention(qkv_bias=bias, output_bias=bias)] * sizes.num_layers,
        sizes.feed_forward(
            bias=bool(raw.get("mlp_bias", False)),
            activation=read_activation(raw, default="relu2"),
            is_gated=False,
        ),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-5))),
    )


def describe_helium(raw: Mapping[str, Any]) -> DecoderSpec:
    """See `Family.describe`. Pairs of neighbours are rotated."""
    rope = RopeDefaults(theta=100_000.0, is_interleaved=True)
    sizes = read_sizes(raw, head_dim=128, rope=rope)
    return decoder(
        raw,
        _HELIUM,
        sizes,
        [sizes.attention(qkv_bias=bool(raw.get("attention_bias", False)))] * sizes.num_layers,
        sizes.feed_forward(bias=bool(raw.get("mlp_bias", False)), activation=read_activation(raw)),
        norm=NormSpec(eps=float(raw.get("rms_norm_eps", 1e-8))),
    )


SEED_OSS = Family(
    architecture=_SEED_OSS, model_type="seed_oss", describe=describe_seed_oss, names=Naming().names
)
ERNIE4_5 = Family(
    architecture=_ERNIE, model_type="ernie4_5", describe=describe_ernie, names=Naming().names
)
ARCEE = Family(
    architecture=_ARCEE, model_type="arcee", describe=describe_arcee, names=Naming().names
)
HELIUM = Family(
    architecture=_HELIUM, model_type="helium", describe=describe_helium, names=Naming().names
)
