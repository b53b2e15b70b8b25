"""Products with packed weights, in Triton for few tokens and in PyTorch for many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import linear

from kernels.paged_attention.workspace import Workspace
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.weight import PackedWeight, unpack

if TYPE_CHECKING:
    from torch import Tensor

#: Maximum of tokens for the product with 4 bits, in the kernel's tiles: it is faster up to there.
#: Each size has a workspace of its own: memory of a recorded step must not grow for a larger one,
#: and so move.
_FEW_TOKENS = (16, 32, 64)


class PackedProduct(nn.Module):
    """x @ weight.T with a weight of 4 bits, one scale per 128 input features.

    For many tokens the weight is unpacked during the product.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self, packed: PackedWeight, workspaces: dict[int, Workspace], implementation: str
    ) -> None:
        """Take a weight of 4 bits. workspaces: see `make_workspaces`."""
        super().__init__()
        self._in_features = packed.in_features
        self.register_buffer("values", packed.values)
        self.register_buffer("scales", packed.scales)
        self.register_buffer("zeros", packed.zeros)
        self._workspaces = workspaces
        self._implementation = implementation

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        weight = PackedWeight(self.values, self.scales, self._in_features, self.zeros)
        tokens = next((most for most in _FEW_TOKENS if len(x) <= most), None)
        if tokens is None:
            return linear(x, unpack(weight).to(x.dtype))
        return weight_only_matmul(
            x, weight, implementation=self._implementation, workspace=self._workspaces[tokens]
        )


def make_workspaces() -> dict[int, Workspace]:
    """Return memory that all products with 4 bits of a model share, by number of tokens."""
    return {tokens: Workspace() for tokens in _FEW_TOKENS}
