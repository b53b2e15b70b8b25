"""A rank's part of a layer's mixer: what it computes, and the cuts of its modules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.sharding.cut import ModuleCut, inputs, outputs, scaled
from shared.model.sharding.split import kept_heads, query_heads, share
from shared.model.spec.mixers import (
    AttentionSpec,
    DeltaSpec,
    LatentAttentionSpec,
    MambaSpec,
    QkNorm,
    ShortConvSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from shared.model.sharding.split import Split
    from shared.model.spec.mixers import Mixer

    Cuts: TypeAlias = Mapping[str, ModuleCut]


def shard_mixer(own: Mixer, split: Split) -> tuple[Mixer, Cuts]:
    """Return a rank's part of a mixer, and the cuts of its modules by their names in the mixer.

    Raises:
        ConfigError: so many ranks cannot divide it.
    """
    match own:
        case AttentionSpec():
            return _attention(own, split)
        case LatentAttentionSpec():
            return _latent(own, split)
        case ShortConvSpec():
            return _conv(own, split)
        case DeltaSpec():
            return _delta(own, split)
        case MambaSpec():
            return _mamba(own, split)


def _attention(own: AttentionSpec, split: Split) -> tuple[AttentionSpec, Cuts]:
    _check_heads("attention heads", own.num_heads, split)
    kept = kept_heads(own.num_kv_heads, split)
    heads = query_heads(own.num_heads, own.num_kv_heads, split)
    dim = own.head_dim
    queries: tuple[range, ...] = (scaled(heads, dim),)
    if own.has_gate:
        queries = (*queries, scaled(heads, dim, own.query_size))
    projections = [(own.projected_query_size, queries)]
    projections += [(own.kv_size, (scaled(kept, dim),))] * 2
    cuts = {
        "qkv": outputs(*projections[: len(own.projection_sizes)]),
        "output": inputs(own.query_size, scaled(heads, dim)),
        "head_gate": outputs((own.num_heads, (heads,))),
        "sinks": outputs((own.num_heads, (heads,))),
    }
    if own.qk_norm in (QkNorm.EACH_HEAD, QkNorm.WHOLE):
        cuts["q_norm"] = outputs((own.query_size, (scaled(heads, dim),)))
        cuts["k_norm"] = outputs((own.kv_size, (scaled(kept, dim),)))
    return replace(own, num_heads=len(heads), num_kv_heads=len(kept)), cuts


def _latent(own: LatentAttentionSpec, split: Split) -> tuple[LatentAttentionSpec, Cuts]:
    """Heads are divided; every rank computes and keeps the row of a token."""
    num = own.num_heads
    _check_heads("attention heads", num, split)
    heads = share(num, split)

    def parts(*sizes: int) -> ModuleCut:
        return outputs(*((num * size, (scaled(heads, size),)) for size in sizes))

    return replace(own, num_heads=len(heads)), {
        "q_up": parts(own.plain_dim, own.rope_dim),
        "kv_up": parts(own.plain_dim, own.value_dim),
        "output": inputs(num * own.value_dim, scaled(heads, own.value_dim)),
    }


def _conv(own: ShortConvSpec, split: Split) -> tuple[ShortConvSpec, Cuts]:
    if own.width < split.size:
        raise ConfigError(_refusal(split, "channels", own.width))
    channels = share(own.width, split)
    return replace(own, width=len(channels)), {
        "inputs": outputs(*[(own.width, (channels,))] * 3),
        "conv": outputs((own.width, (channels,))),
        "out": inputs(own.width, channels),
    }


def _delta(own: DeltaSpec, split: Split) -> tuple[DeltaSpec, Cuts]:
    keys, heads = _state_heads("linear key heads", own.num_key_heads, own.num_heads, split)
    key_rows, values = scaled(keys, own.key_dim), scaled(heads, own.value_dim)
    channels = (
        key_rows,
        scaled(keys, own.key_dim, own.key_size),
        scaled(heads, own.value_dim, 2 * own.key_size),
    )
    by_head = (own.num_heads, (heads,))
    return replace(own, num_key_heads=len(keys), num_heads=len(heads)), {
        "inputs": outputs((own.conv_width, channels), (own.value_size, (values,))),
        "rates": outputs(by_head, by_head),
        "conv": outputs((own.conv_width, channels)),
        "decay": outputs(by_head),
        "out": inputs(own.value_size, values),
    }


def _mamba(own: MambaSpec, split: Split) -> tuple[MambaSpec, Cuts]:
    groups, heads = _state_heads("groups of Mamba heads", own.num_groups, own.num_heads, split)
    inner = scaled(heads, own.head_dim)
    channels = (
        inner,
        scaled(groups, own.state_dim, own.inner_size),
        scaled(groups, own.state_dim, own.inner_size + own.group_size),
    )
    by_head = (own.num_heads, (heads,))
    return replace(own, num_heads=len(heads), num_groups=len(groups)), {
        "inputs": outputs((own.inner_size, (inner,)), (own.conv_width, channels), by_head),
        "conv": outputs((own.conv_width, channels)),
        "decay": outputs(by_head),
        "skip": outputs(by_head),
        "norm": outputs((own.inner_size, (inner,))),
        "out": inputs(own.inner_size, inner),
    }


def _state_heads(what: str, num_groups: int, num_heads: int, split: Split) -> tuple[range, range]:
    """Return a rank's groups, and its heads: each part of a state is divided by itself.

    Raises ConfigError: the heads would not be those of the groups.
    """
    _check_heads("heads with states", num_heads, split)
    if num_groups % split.size and split.size % num_groups:
        raise ConfigError(_refusal(split, what, num_groups))
    return kept_heads(num_groups, split), share(num_heads, split)


def _check_heads(what: str, num: int, split: Split) -> None:
    if num % split.size:
        raise ConfigError(_refusal(split, what, num))


def _refusal(split: Split, what: str, num: int) -> str:
    return f"tensor_parallel_size {split.size} does not divide the model's {num} {what}"
