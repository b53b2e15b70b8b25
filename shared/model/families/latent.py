"""Latent attention, as configs spell it and as checkpoints store it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.parts import Linear
from shared.model.families.sizes import Sizes, read_sizes
from shared.model.rope import RopeDefaults, head_order, score_factor
from shared.model.spec.mixers import LatentAttentionSpec
from shared.model.spec.norms import NormSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: By part of a layer. `attention.q_up` is of queries that are not compressed.
LATENT_PARTS: Mapping[str, str] = {
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_up": "self_attn.q_b_proj",
    "attention.q": "self_attn.q_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm",
    "attention.kv_up": "self_attn.kv_b_proj",
    "attention.output": "self_attn.o_proj",
}
#: Several times that of any model.
_LARGEST = 2**16


def read_latent(
    raw: Mapping[str, Any], *, is_interleaved: bool
) -> tuple[Sizes, LatentAttentionSpec]:
    """Return the sizes of a config, and the mixer of all its layers.

    is_interleaved: pairs of neighbours are rotated.

    Raises:
        ModelLoadError: a size is out of range, or they do not fit together.
        KeyError, TypeError, ValueError: a value is missing or wrong.
    """
    rank, rope_dim = raw.get("q_lora_rank"), int(raw["qk_rope_head_dim"])
    # What they say of heads is not of these heads.
    own = {**raw, "head_dim": rope_dim, "num_key_value_heads": None}
    sizes = read_sizes(own, rope=RopeDefaults(is_interleaved=is_interleaved))
    mixer = LatentAttentionSpec(
        num_heads=sizes.num_heads,
        q_rank=None if rank is None else int(rank),
        kv_rank=int(raw["kv_lora_rank"]),
        plain_dim=int(raw["qk_nope_head_dim"]),
        rope_dim=rope_dim,
        value_dim=int(raw["v_head_dim"]),
        rope=sizes.rope,
        scale=1.0,
        bias=bool(raw.get("attention_bias", False)),
    )
    for name, value in (
        ("q_lora_rank", mixer.q_rank),
        ("kv_lora_rank", mixer.kv_rank),
        ("qk_nope_head_dim", mixer.plain_dim),
        ("v_head_dim", mixer.value_dim),
    ):
        if value is not None and not 1 <= value <= _LARGEST:
            raise ModelLoadError(f"{name} must be from 1 to {_LARGEST}, not {value}")
    scale = (mixer.plain_dim + rope_dim) ** -0.5 * score_factor(sizes.rope)
    return sizes, replace(mixer, scale=scale)


def latent_norms(mixer: LatentAttentionSpec) -> Iterator[tuple[str, NormSpec, int]]:
    """Yield the norms of a mixer: part, norm, and size."""
    norm = NormSpec(eps=mixer.norm_eps)
    yield "attention.kv_norm", norm, mixer.kv_rank
    if mixer.q_rank is not None:
        yield "attention.q_norm", norm, mixer.q_rank


def latent_linears(mixer: LatentAttentionSpec, hidden: int) -> Iterator[Linear]:
    """Yield the linears of a mixer.

    Checkpoints store the rows of a head behind each other. In our linears the first parts of all
    heads are in front of the second parts.
    """
    heads, plain, rope = mixer.num_heads, mixer.plain_dim, mixer.rope_dim
    order = head_order(mixer.rope) or range(rope)
    in_size, part = hidden, "attention.q"
    if mixer.q_rank is not None:
        yield Linear("attention.q_down", (mixer.q_rank,), hidden, mixer.bias)
        in_size, part = mixer.q_rank, "attention.q_up"
    yield Linear(
        part,
        (heads * plain, heads * rope),
        in_size,
        bias=False,
        path="attention.q_up",
        fused_rows=_apart(heads, range(plain), [plain + row for row in order]),
    )
    kv_rank, value = mixer.kv_rank, mixer.value_dim
    rows = _apart(1, range(kv_rank), [kv_rank + row for row in order])
    yield Linear("attention.kv_down", (kv_rank, rope), hidden, mixer.bias, fused_rows=rows)
    rows = _apart(heads, range(plain), range(plain, plain + value))
    sizes = (heads * plain, heads * value)
    yield Linear("attention.kv_up", sizes, kv_rank, bias=False, fused_rows=rows)
    yield Linear("attention.output", (hidden,), heads * value, mixer.bias)


def _apart(heads: int, first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the stored rows of all heads' first parts, then those of their second parts."""
    size = len(first) + len(second)
    starts = range(0, heads * size, size)
    return tuple(start + row for part in (first, second) for start in starts for row in part)
