"""Makes bfloat16 right in Triton's interpreter, which computes on its bit patterns as on integers.

Conversions round to the nearest even and products of matrices use float32 values. Any other
arithmetic on bfloat16 is refused: kernels are meant to compute in float32, and here a slip shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def install() -> None:
    """Patch the interpreter of this process."""
    original_cast = InterpreterBuilder.cast_impl
    original_fp_to_fp = InterpreterBuilder.create_fp_to_fp
    original_dot = InterpreterBuilder.create_dot

    def cast(self: Any, source: Any, target: Any) -> Any:
        if not (_is_bf16(source.dtype) or _is_bf16(target)) or source.dtype == target.scalar:
            return original_cast(self, source, target)
        wide = _widen(source) if _is_bf16(source.dtype) else original_cast(self, source, tl.float32)
        return _narrow(wide) if _is_bf16(target) else original_cast(self, wide, target)

    def fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if _is_bf16(source.dtype) or _is_bf16(target):
            return cast(self, source, target)
        return original_fp_to_fp(self, source, target, rounding)

    def dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return original_dot(
            self, *(_widen(x) if _is_bf16(x.dtype) else x for x in (left, right)), *rest
        )

    InterpreterBuilder.cast_impl = cast
    InterpreterBuilder.create_fp_to_fp = fp_to_fp
    InterpreterBuilder.create_dot = dot
    for name in ("binary_op", "unary_op"):
        setattr(InterpreterBuilder, name, _refusing(getattr(InterpreterBuilder, name)))


def _refusing(original: Any) -> Any:
    def operation(self: Any, first: Any, *rest: Any) -> Any:
        if _is_bf16(first.dtype):
            raise TypeError("arithmetic on bfloat16: convert to float32 first")
        return original(self, first, *rest)

    return operation


def _is_bf16(dtype: Any) -> bool:
    return bool(getattr(dtype, "scalar", None) == tl.bfloat16)


def _widen(handle: Any) -> Any:
    """The bit patterns are the upper halves of float32 ones."""
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrow(handle: Any) -> Any:
    bits = np.ascontiguousarray(handle.data, dtype=np.float32).view(np.uint32)
    lowest_kept = (bits >> 16) & 1
    rounded = ((bits + 0x7FFF + lowest_kept) >> 16).astype(np.uint16)
    return TensorHandle(np.where(np.isnan(handle.data), np.uint16(0x7FC0), rounded), tl.bfloat16)
