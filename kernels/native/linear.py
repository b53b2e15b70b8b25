"""One packed product of the C++ decoder on its own, for tests and measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.native.kinds import Kind
from kernels.native.library import load_library

if TYPE_CHECKING:
    from torch import Tensor


class PackedLinear:
    """Computes `x @ weight.T + bias` with a weight that is packed once."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, kind: Kind, num_threads: int = 1
    ) -> None:
        """weight: [columns, inner], float32 or bfloat16; bias: [columns].

        Raises:
            NativeUnavailableError: the library cannot be compiled here.
            MemoryError: the packed weight does not fit.
        """
        self._library = load_library()
        self._pool = self._library.baton_pool_new(num_threads, None, 0)
        self.columns, self.inner = weight.shape
        weight = weight.contiguous()
        stored = Kind.BFLOAT16 if weight.dtype == torch.bfloat16 else Kind.FLOAT32
        values = None if bias is None else bias.float().contiguous()
        self._matrix = self._library.baton_matrix_new(
            self._pool,
            kind,
            weight.data_ptr(),
            stored,
            self.columns,
            self.inner,
            None if values is None else values.data_ptr(),
            False,
            None,
        )
        if not self._matrix:
            raise MemoryError(f"no memory for a packed weight of {self.columns} x {self.inner}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32 [n, columns] for x float32 [n, inner].

        Raises:
            MemoryError: there is no memory for the product.
        """
        x = x.contiguous()
        out = torch.empty(len(x), self.columns)
        failed = self._library.baton_matrix_multiply(
            self._pool, self._matrix, x.data_ptr(), len(x), out.data_ptr()
        )
        if failed:
            raise MemoryError(f"no memory for a product of {len(x)} rows")
        return out

    def __del__(self) -> None:
        if getattr(self, "_matrix", None):
            self._library.baton_matrix_delete(self._matrix)
        if getattr(self, "_pool", None):
            self._library.baton_pool_delete(self._pool)
