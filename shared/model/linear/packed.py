"""Products with packed weights, in Triton for few tokens and in PyTorch for many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import linear

from kernels.paged_attention.workspace import Workspace
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.weight import unpack

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.weight_only_matmul.weight import PackedWeight

#: Maximum of tokens for the product with codes, in the kernel's tiles: it is faster up to there.
#: Each size has a workspace of its own: memory of a recorded step must not grow for a larger one,
#: and so move.
_FEW_TOKENS = (16, 32, 64)


class PackedProduct(nn.Module):
    """x @ weight.T with a weight of few bits. For many tokens it is unpacked during the product."""

    order: Tensor | None

    def __init__(
        self,
        packed: PackedWeight,
        workspaces: dict[int, Workspace],
        implementation: str,
        *,
        order: Tensor | None = None,
    ) -> None:
        """workspaces: see `make_workspaces`; order: the features of x that are the weight's."""
        super().__init__()
        self._weight = packed
        self.register_buffer("order", order)
        for name, tensor in packed.tensors.items():
            self.register_buffer(name, tensor)
        self._workspaces = workspaces
        self._implementation = implementation

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        if self.order is not None:
            x = x[:, self.order]
        tokens = next((most for most in _FEW_TOKENS if len(x) <= most), None)
        if tokens is None:
            return linear(x, unpack(self._weight).to(x.dtype))
        return weight_only_matmul(
            x, self._weight, implementation=self._implementation, workspace=self._workspaces[tokens]
        )


def make_workspaces() -> dict[int, Workspace]:
    """Return memory that all such products of a model share, by number of tokens."""
    return {tokens: Workspace() for tokens in _FEW_TOKENS}
