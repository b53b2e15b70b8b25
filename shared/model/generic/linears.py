"""The linears of transformers' modules, replaced by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel

    from shared.model.linear.base import LinearMethod


class OwnLinear(nn.Module):
    """A linear of the module, in the format of a method."""

    def __init__(self, linear: nn.Linear, method: LinearMethod) -> None:
        super().__init__()
        self.linear = FusedLinear(
            in_size=linear.in_features,
            out_sizes=(linear.out_features,),
            bias=linear.bias is not None,
            dtype=linear.weight.dtype,
            method=method,
        )
        self.linear.fill("weight", linear.weight.detach())
        if linear.bias is not None:
            self.linear.fill("bias", linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        out: Tensor = self.linear(x.flatten(0, -2))[0]
        return out.view(*x.shape[:-1], -1)


def narrow_linears(module: PreTrainedModel, method: LinearMethod) -> None:
    """Give the linears of the layers to a method; the output head keeps its dtype."""
    if method is DENSE:
        return
    for owner, name, linear in list(linears_of(module)):
        setattr(owner, name, OwnLinear(linear, method))


def linears_of(module: PreTrainedModel) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield the linears of the layers: the part that has each, its name there, and itself."""
    untyped: Any = module
    head = untyped.get_output_embeddings()
    for owner in module.modules():
        for name, child in owner.named_children():
            if type(child) is nn.Linear and child is not head:
                yield owner, name, child


def buffers_of(module: nn.Module) -> list[Tensor]:
    """Return the buffers of our linears."""
    owners = (each for each in module.modules() if isinstance(each, FusedLinear))
    return [buffer for owner in owners for buffer in owner.buffers()]
