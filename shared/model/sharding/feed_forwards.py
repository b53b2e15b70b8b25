"""A rank's part of a layer's feed-forward: what it computes, and the cuts of its modules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.sharding.cut import ModuleCut, inputs, outputs
from shared.model.sharding.split import share
from shared.model.spec.feed_forwards import ExpertsSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.model.sharding.split import Split
    from shared.model.spec.feed_forwards import FeedForwardSpec

#: In the names of modules: the number of any expert.
ANY_EXPERT = "{}"


def shard_feed_forward(
    own: FeedForwardSpec | ExpertsSpec, split: Split, units: Mapping[str, int]
) -> tuple[FeedForwardSpec | ExpertsSpec, Mapping[str, ModuleCut]]:
    """Return a rank's part of a feed-forward, and the cuts of its modules by their names in it.

    units: by name of a module: the inputs of it that must stay together; 1 where not named.

    Raises:
        ConfigError: so many ranks cannot divide it.
    """
    if not isinstance(own, ExpertsSpec):
        return _dense(own, split, units)
    spec, cuts = own, dict[str, ModuleCut]()
    if split.expert_parallel:
        num = own.router.num_experts
        if num < split.size:
            raise _refused("experts", num, split)
        spec = replace(spec, own=share(num, split))
    else:
        expert, cuts = _dense(own.expert, split, units, "experts", ANY_EXPERT)
        spec = replace(spec, expert=expert)
    if own.shared is not None:
        shared, further = _dense(own.shared, split, units, "shared")
        spec, cuts = replace(spec, shared=shared), {**cuts, **further}
    # It maps the rank's own sum, whose parts are added up behind it.
    cuts["latent_up"] = ModuleCut(is_summed=True)
    return spec, cuts


def _dense(
    own: FeedForwardSpec, split: Split, units: Mapping[str, int], *path: str
) -> tuple[FeedForwardSpec, dict[str, ModuleCut]]:
    gate_up, up, down = (".".join((*path, name)) for name in ("gate_up", "up", "down"))
    unit = units.get(down, 1)
    inner = share(own.inner_size, split, unit)
    if not inner:
        count = -(-own.inner_size // unit)
        what = "inner numbers" if unit == 1 else f"groups of {unit} inner numbers"
        raise _refused(what, count, split)
    row = own.inner_size, (inner,)
    return replace(own, inner_size=len(inner)), {
        gate_up: outputs(row, row),
        up: outputs(row),
        down: inputs(own.inner_size, inner),
    }


def _refused(what: str, num: int, split: Split) -> ConfigError:
    return ConfigError(
        f"tensor_parallel_size {split.size} is more than the {num} {what} of a layer"
    )
