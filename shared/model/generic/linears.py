"""The linears of transformers' modules, replaced by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shared.errors import ModelLoadError
from shared.model.generic.experts import give_to_experts
from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import PreTrainedModel

    from shared.model.generic.entries import Entries
    from shared.model.linear.base import LinearMethod
    from shared.model.matrix.quantized import QuantizedMatrix


class OwnLinear(nn.Module):
    """A linear of the module, in the format of a method."""

    def __init__(
        self, linear: nn.Linear, method: LinearMethod, matrix: QuantizedMatrix | None = None
    ) -> None:
        """Take its weight, or the matrix that it is stored as."""
        super().__init__()
        self.linear = FusedLinear(
            in_size=linear.in_features,
            out_sizes=(linear.out_features,),
            bias=linear.bias is not None,
            dtype=linear.weight.dtype,
            method=method,
        )
        if matrix is None:
            self.linear.fill("weight", linear.weight.detach())
        else:
            self.linear.take(None, matrix)
        if linear.bias is not None:
            self.linear.fill("bias", linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        out: Tensor = self.linear(x.flatten(0, -2))[0]
        return out.view(*x.shape[:-1], -1)


def narrow_linears(module: PreTrainedModel, method: LinearMethod) -> None:
    """Give the linears of the layers to a method; the output head keeps its dtype."""
    for owner, name, linear in list(linears_of(module)):
        setattr(owner, name, OwnLinear(linear, method))


def give_matrices(module: PreTrainedModel, entries: Entries, method: LinearMethod) -> int:
    """Give linears, and experts, the matrices that their weights were made of.

    Returns the number of output heads whose inputs should be rounded, and are not.

    Raises:
        ModelLoadError: another part's inputs should be; names the tensor.
    """
    for owner, name, linear in list(linears_of(module)):
        matrix = entries.take(linear.weight)
        if matrix is not None:
            setattr(owner, name, OwnLinear(linear, method, matrix))
    give_to_experts(module, entries, method)
    untyped: Any = module
    head = untyped.get_output_embeddings()
    of_head = None if head is None else entries.take(head.weight)
    for kept in entries.not_taken:
        if kept.matrix.inputs is not None:
            raise ModelLoadError(
                f"tensor {kept.name!r}: the inputs of its product are rounded, and transformers' "
                f"{type(module).__name__} does not compute it by a linear of its own"
            )
    return int(of_head is not None and of_head.inputs is not None)


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
