"""Products, attention and gates of packed texts by the native kernels; see `Operations`."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING

import torch

from kernels.native import kinds
from kernels.native.kinds import Kind
from kernels.native.structures import Gates, Texts
from shared.model.linear.base import MadeOfDense
from shared.model.native.packing.matrices import STORED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.linear.fused import FusedLinear
    from shared.model.native.threads import LibraryThreads
    from shared.model.spec.feed_forwards import Activation

#: By dtype of a weight: how it is kept.
KINDS = {torch.float32: Kind.FLOAT_PARTS, torch.bfloat16: Kind.BFLOAT16}


class NativeProduct:
    """A weight with its bias in the native kernels' order; see `Product`."""

    def __init__(self, threads: LibraryThreads, weight: Tensor, bias: Tensor | None) -> None:
        """Pack a weight [rows, in_size].

        Raises:
            MemoryError: it does not fit.
        """
        self._threads, self._library = threads, threads.library
        self._num_rows, in_size = weight.shape
        weight = weight.detach().contiguous()
        values = None if bias is None else bias.detach().float().contiguous()
        self._matrix = self._library.baton_matrix_new(
            threads.pool,
            KINDS[weight.dtype],
            weight.data_ptr(),
            STORED[weight.dtype],
            self._num_rows,
            in_size,
            None if values is None else values.data_ptr(),
            False,
            None,
        )
        if not self._matrix:
            raise MemoryError(f"no memory for a packed weight of {self._num_rows} x {in_size}")

    @property
    def num_bytes(self) -> int:
        """Memory of the packed weight."""
        return int(self._library.baton_matrix_bytes(self._matrix))

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32 [num_tokens, rows], the bias added; x: float32 [num_tokens, in_size]."""
        x = x.contiguous()
        out = torch.empty(len(x), self._num_rows)
        self._threads.take_caller()
        if self._library.baton_matrix_multiply(
            self._threads.pool, self._matrix, x.data_ptr(), len(x), out.data_ptr()
        ):
            raise MemoryError(f"no memory for a product of {len(x)} rows")
        return out

    def __del__(self) -> None:
        """Free the memory."""
        if getattr(self, "_matrix", None):
            self._library.baton_matrix_delete(self._matrix)


class NativeProducts(MadeOfDense):
    """The `LinearMethod` of packed weights. What flows between linears is float32."""

    def __init__(self, threads: LibraryThreads, weights: torch.dtype) -> None:
        """weights: their dtype, float32 or bfloat16."""
        self._threads, self._weights = threads, weights

    def room(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """See `LinearMethod.room`."""
        return torch.empty(shape, dtype=self._weights)

    def finish(self, linear: FusedLinear) -> NativeProduct:
        """See `LinearMethod.finish`. The product adds the bias."""
        product = NativeProduct(self._threads, linear.weight, linear.bias)
        linear.bias = None
        return product


class NativeAttention:
    """See `Attend`; of float32."""

    def __init__(self, threads: LibraryThreads) -> None:
        self._threads = threads

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Sequence[int],
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """See `Attend`."""
        q, k, v = (_rows_of_heads(part) for part in (q, k, v))
        out = torch.empty(q.shape)
        own_lengths = torch.tensor(lengths, dtype=torch.int32)
        texts = Texts(
            queries=q.data_ptr(),
            keys=k.data_ptr(),
            values=v.data_ptr(),
            query_stride=q.stride(0),
            key_stride=k.stride(0),
            value_stride=v.stride(0),
            out=out.data_ptr(),
            lengths=own_lengths.data_ptr(),
            count=len(lengths),
            heads=q.shape[1],
            kv_heads=k.shape[1],
            head_dim=q.shape[2],
            window=window or 0,
            scale=scale,
        )
        self._threads.take_caller()
        if self._threads.library.baton_whole_attention(self._threads.pool, byref(texts)):
            raise MemoryError(f"no memory for attention of {len(q)} tokens")
        return out


class NativeGate:
    """See `Gate`; of float32."""

    def __init__(self, threads: LibraryThreads) -> None:
        self._threads = threads

    def __call__(self, kind: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
        """See `Gate`."""
        out = gate if gate.is_contiguous() else torch.empty(gate.shape)
        gates = Gates(
            kind=kinds.Activation[kind.name],
            gates=gate.data_ptr(),
            ups=None if up is None else up.data_ptr(),
            stride=gate.stride(0),
            out=out.data_ptr(),
            count=gate.shape[0],
            size=gate.shape[1],
        )
        self._threads.take_caller()
        self._threads.library.baton_gate_rows(self._threads.pool, byref(gates))
        return out


def _rows_of_heads(x: Tensor) -> Tensor:
    """Return [num_tokens, num_heads, head_dim] whose tokens have their heads beside each other."""
    is_so = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if is_so else x.contiguous()
