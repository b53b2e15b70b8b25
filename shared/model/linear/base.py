"""The storage format of a linear's weight, and the product with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from shared.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.fused import FusedLinear
    from shared.model.matrix.blocks import AnyMatrix


class UnlikeInputsError(Exception):
    """The projections of a linear are not one product: their inputs are rounded differently."""


class Product(Protocol):
    """A weight in a method's format."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T, without the bias: [num_tokens, in_size] to [num_tokens, rows]."""
        ...


class LinearMethod(Protocol):
    """The storage format of all linears of a model.

    A checkpoint's tensors are copied into a weight of the model's dtype, one after the other. The
    method converts a weight when it is complete. So besides converted weights, memory has only
    weights whose tensors are incomplete. A matrix that a checkpoint stores in few bits is written
    into that weight, too, unless the method multiplies with it as it is.
    """

    def room(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Return memory for a weight: its linear's until `finish` has converted it."""
        ...

    def finish(self, linear: FusedLinear) -> Product | None:
        """Convert the complete weight; the linear then frees it, unless None is returned."""
        ...

    def keeps(self, matrix: AnyMatrix) -> bool:
        """Return whether `keep` multiplies with a matrix, and with more rows like these."""
        ...

    @property
    def keeps_parts(self) -> bool:
        """Whether `keep` takes some of a linear's projections, beside others."""
        ...

    @property
    def keeps_head(self) -> bool:
        """Whether the method keeps the output head, too, whose rows the embedding may be."""
        ...

    def keep(self, matrix: AnyMatrix, linear: FusedLinear) -> Product:
        """Return a product with rows of a linear as a checkpoint stores them.

        Only for matrices of `keeps`; they are all of its rows unless `keeps_parts`.
        """
        ...


class MadeOfDense:
    """Methods that make their form of a dense weight only: they keep no stored matrix."""

    keeps_parts = False
    keeps_head = False

    def room(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """See `LinearMethod.room`."""
        return torch.empty(shape, dtype=dtype, device="cpu")

    def keeps(self, matrix: AnyMatrix) -> bool:
        """See `LinearMethod.keeps`."""
        return False

    def keep(self, matrix: AnyMatrix, linear: FusedLinear) -> Product:
        """See `LinearMethod.keep`. Always raises InternalError."""
        raise InternalError(f"{type(self).__name__} keeps no stored matrix")


class Dense(MadeOfDense):
    """The weight stays in its stored format."""

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return None


DENSE = Dense()
