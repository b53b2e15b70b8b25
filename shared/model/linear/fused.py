"""Several projections of the same input as one product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from shared.model.linear.base import DENSE, UnlikeInputsError
from shared.model.matrix.uniting import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.adapted.linears import Delta
    from shared.model.linear.base import LinearMethod, Product
    from shared.model.matrix.blocks import AnyMatrix
    from shared.ranks.base import Collective


class FusedLinear(nn.Module):
    """Each projection is a range of the weight's rows.

    The weight is allocated at once, or at the first `part` if a method will convert it.
    """

    def __init__(
        self,
        *,
        in_size: int,
        out_sizes: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
        is_gated: bool = False,
    ) -> None:
        """Make the linear.

        `is_gated`: of two projections one is the gate of the other, by element.
        """
        super().__init__()
        self.in_size = in_size
        self.out_sizes = out_sizes
        self.is_gated = is_gated
        rows = sum(out_sizes)
        device = None if method is DENSE else "meta"
        weight = torch.empty(rows, in_size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(rows, dtype=dtype), requires_grad=False) if bias else None
        )
        self._method = method
        #: Number of tensors of a checkpoint that are still missing.
        self._num_missing = len(out_sizes) * (2 if bias else 1)
        #: By projection: stored matrices that the method will keep, until the linear is complete.
        self._matrices: dict[int | None, AnyMatrix] = {}
        #: The product used instead of `weight`, which is empty then.
        self.product: Product | None = None
        #: Of a rank's part of a linear by inputs: joins the ranks that have the others.
        self.shared_by: Collective | None = None
        #: What adapters add; None: there are none.
        self.delta: Delta | None = None

    @property
    def is_dense(self) -> bool:
        """Whether its weight stays in the model's dtype, however it is stored."""
        return self._method is DENSE

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return one output per projection."""
        fused = linear(x, self.weight, self.bias) if self.product is None else self._narrow(x)
        if self.delta is not None:
            self.delta.add(fused, x)
        parts: tuple[Tensor, ...] = torch.split(fused, list(self.out_sizes), dim=-1)
        return parts

    def part(self, index: int | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of one projection, or of all, as views.

        Not once a method has taken the weight.
        """
        if self.weight.is_meta and self._method is not DENSE:
            rows, columns = self.weight.shape
            weight = self._method.room((rows, columns), self.weight.dtype)
            self.weight = nn.Parameter(weight, requires_grad=False)
        return self.weight[self._range(index)], self.bias_part(index)

    def bias_part(self, index: int | None) -> Tensor | None:
        """Bias of one projection, or of all, as a view."""
        return None if self.bias is None else self.bias[self._range(index)]

    def _range(self, index: int | None) -> slice:
        if index is None:
            return slice(None)
        start = sum(self.out_sizes[:index])
        return slice(start, start + self.out_sizes[index])

    def keep_in(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep weight and bias, which are not filled yet, in this memory."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def fill(self, kind: str, values: Tensor) -> None:
        """Give all rows of `weight` or `bias` their values."""
        weight, bias = self.part(None)
        target = weight if kind == "weight" else bias
        assert target is not None
        target.copy_(values)
        self.filled(None)

    def take(self, index: int | None, matrix: AnyMatrix) -> None:
        """Give the weight of one projection, or of all, as a checkpoint stores it.

        Raises:
            UnlikeInputsError: the projections round inputs differently, and the method keeps no
                parts.
        """
        if self._method.keeps(matrix):
            self._matrices[index] = matrix
        else:
            matrix.write(self.part(index)[0])
        self.filled(index)

    def filled(self, index: int | None) -> None:
        """What `part` returned has its values. With the last one the method takes the weight."""
        self._num_missing -= len(self.out_sizes) if index is None else 1
        if self._num_missing == 0:
            self.finish(self._method)

    @torch.inference_mode()
    def finish(self, method: LinearMethod) -> None:
        """Let `method` convert the complete weight."""
        self.product = self._keep(method)
        if self.product is None:
            self.product = method.finish(self)
        if self.product is not None:
            device = "cpu" if self.weight.is_meta else self.weight.device
            nothing = torch.empty(0, dtype=self.weight.dtype, device=device)
            self.weight = nn.Parameter(nothing, requires_grad=False)

    def _keep(self, method: LinearMethod) -> Product | None:
        """Return a product with the stored matrices; None: there are none."""
        matrices, self._matrices = self._matrices, {}
        if not matrices:
            return None
        indices: list[int | None] = [*range(len(self.out_sizes))]
        if None in matrices:
            indices = [None]
        if len(matrices) == len(indices):
            parts = [matrices[index] for index in indices]
            whole = join(parts, alike=method.keeps_parts)
            if whole is not None:
                return method.keep(whole, self)
        if not method.keeps_parts:
            if any(matrix.inputs is not None for matrix in matrices.values()):
                sizes = ", ".join(map(str, self.out_sizes))
                raise UnlikeInputsError(
                    f"projections of {self.in_size} to {sizes} numbers do not round inputs alike"
                )
            for index, matrix in matrices.items():
                matrix.write(self.part(index)[0])
            return None
        return SideBySide(
            [
                method.keep(matrices[index], self) if index in matrices else self._rows(index)
                for index in indices
            ]
        )

    def _rows(self, index: int | None) -> Product:
        """The product with a projection's own rows."""
        return Rows(self.part(index)[0].clone())

    def _narrow(self, x: Tensor) -> Tensor:
        assert self.product is not None
        fused = self.product(x)
        return fused if self.bias is None else fused + self.bias


class Rows(nn.Module):
    """A product with a dense weight."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        return linear(x, self.weight)


class SideBySide(nn.Module):
    """Products of the same inputs, whose results are one beside the other."""

    def __init__(self, products: Sequence[Product]) -> None:
        super().__init__()
        self._products = list(products)
        for number, product in enumerate(products):
            if isinstance(product, nn.Module):
                self.add_module(str(number), product)

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        return torch.cat([product(x) for product in self._products], dim=-1)
