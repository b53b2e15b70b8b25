"""How a linear keeps its weight, and what multiplies with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.fused import FusedLinear


class Product(Protocol):
    """What a method made of a weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """x @ weight.T, without the bias: [num_tokens, in_size] to [num_tokens, rows]."""
        ...


class LinearMethod(Protocol):
    """One for all linears of a model that keep their weights alike.

    A checkpoint's tensors are copied into a weight of the model's dtype, one after the other. Once
    the weight is complete, the method takes it. So besides what methods have made there is never
    more in memory than the weights that files have begun and not finished.
    """

    def finish(self, linear: FusedLinear) -> Product | None:
        """Take the complete weight; the linear gives it up, unless None is returned."""
        ...


class Dense:
    """The weight stays as it was stored."""

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return None


DENSE = Dense()
