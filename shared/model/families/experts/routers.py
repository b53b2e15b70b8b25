"""Routers and layers of experts, as configs spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.families.sizes import read_activation
from shared.model.spec.feed_forwards import (
    ExpertsSpec,
    FeedForwardSpec,
    GroupScore,
    RouterScores,
    RouterSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Several times those of any model.
_MOST_EXPERTS = 2**14


#: Experts of a group, at least.
_LEAST_SIZES = {GroupScore.BEST_TWO: 2, GroupScore.BEST: 1}
#: Names of the number of experts. Of transformers, old and new versions write different ones.
_NAMES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def read_router(
    raw: Mapping[str, Any], *, chosen: str = "num_experts_per_tok", **own: Any
) -> RouterSpec:
    """Return the router of a config; `chosen`: the name of the number of chosen experts there.

    `own` are other fields of the record.

    Raises:
        ModelLoadError: the numbers do not fit together.
        KeyError: a number is missing.
    """
    experts = next((name for name in _NAMES if raw.get(name) is not None), _NAMES[0])
    router = RouterSpec(num_experts=int(raw[experts]), num_chosen=int(raw[chosen]), **own)
    if not 1 <= router.num_experts <= _MOST_EXPERTS:
        raise ModelLoadError(f"{experts} must be from 1 to {_MOST_EXPERTS}, not {raw[experts]}")
    if not 1 <= router.num_chosen <= router.num_experts:
        raise ModelLoadError(
            f"{chosen} is {router.num_chosen}, but {experts} is {router.num_experts}"
        )
    groups, kept = router.num_groups, router.num_chosen_groups
    size, rest = divmod(router.num_experts, max(1, groups))
    if groups < 1 or rest or (groups > 1 and size < _LEAST_SIZES[router.group_score]):
        raise ModelLoadError(f"n_group is {groups}, but {experts} is {router.num_experts}")
    if not 1 <= kept <= groups or kept * size < router.num_chosen:
        raise ModelLoadError(
            f"topk_group is {kept} of {groups} groups, for {router.num_chosen} experts per token"
        )
    return router


def read_deepseek_experts(raw: Mapping[str, Any]) -> ExpertsSpec:
    """Return the experts of DeepSeek-V3 and its kin.

    Raises:
        ModelLoadError: the numbers do not fit together.
    """
    return with_shared_experts(raw, read_deepseek_router(raw))


def read_deepseek_router(raw: Mapping[str, Any]) -> RouterSpec:
    """Return the router of DeepSeek-V3 and its kin: biased sigmoids, in groups.

    Raises:
        ModelLoadError: the numbers do not fit together.
    """
    return read_router(
        raw,
        scores=RouterScores.SIGMOID,
        has_choice_bias=True,
        is_normalised=bool(raw.get("norm_topk_prob", True)),
        scale=float(raw.get("routed_scaling_factor", 1.0)),
        num_groups=int(raw.get("n_group") or 1),
        num_chosen_groups=int(raw.get("topk_group") or 1),
    )


def with_shared_experts(
    raw: Mapping[str, Any], router: RouterSpec, *, bias: bool = False
) -> ExpertsSpec:
    """Return the experts that a router chooses among, and those that all tokens share.

    bias: of the shared ones.
    """
    inner, shared = int(raw["moe_intermediate_size"]), int(raw.get("n_shared_experts") or 0)
    activation = read_activation(raw)
    return ExpertsSpec(
        router=router,
        expert=FeedForwardSpec(inner_size=inner, activation=activation),
        shared=FeedForwardSpec(inner_size=inner * shared, bias=bias, activation=activation)
        if shared
        else None,
    )


def sparse_layers(raw: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Return by layer whether it has experts, as configs of Qwen say it."""
    dense = raw.get("mlp_only_layers") or ()
    step = int(raw.get("decoder_sparse_step") or 1)
    return [n not in dense and (n + 1) % step == 0 for n in range(num_layers)]
