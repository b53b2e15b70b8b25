"""Adapters of the linears of transformers' modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shared.model.adapted.linears import AdaptedLinears
from shared.model.generic.linears import OwnLinear

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from shared.model.adapted.linears import Delta, TakesDelta

#: In the names of modules that read some tokens only, or choose for each.
_BY_TOKEN = ("expert", "router")
_GATES = (".gate", ".shared_expert_gate")


class HookedLinear:
    """See `TakesDelta`: a linear of the module, whose results are changed behind it."""

    def __init__(self, linear: nn.Linear) -> None:
        self.in_size: int = linear.in_features
        self.out_sizes: tuple[int, ...] = (linear.out_features,)
        self.delta: Delta | None = None
        linear.register_forward_hook(self._add)

    def _add(self, _: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        if self.delta is not None:
            self.delta.add(result.flatten(0, -2), inputs[0].flatten(0, -2))


def take_adapters(module: PreTrainedModel, implementation: str) -> AdaptedLinears:
    """Return the linears of the module's layers, by their names there.

    implementation: of the kernels.
    """
    untyped: Any = module
    head = untyped.get_output_embeddings()
    found: dict[str, TakesDelta] = {}
    for name, part in module.named_modules():
        if any(each in name for each in _BY_TOKEN) or name.endswith(_GATES) or part is head:
            continue
        if type(part) is nn.Linear:
            found[name] = HookedLinear(part)
        elif isinstance(part, OwnLinear):
            found[name] = part.linear
    return AdaptedLinears(
        found, dtype=module.dtype, device=module.device, implementation=implementation
    )
