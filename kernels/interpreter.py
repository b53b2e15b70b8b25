"""Corrects bfloat16 and float8 in Triton's interpreter, which runs kernels with numpy.

numpy has no bfloat16, so the interpreter keeps bit patterns as uint16 and computes with them: sums,
comparisons and products of matrices are silently wrong, and float32 is truncated instead of rounded
(triton-lang/triton#10945, #11584). Here every operation widens its operands to float32, which holds
each bfloat16 exactly, and rounds its result to the nearest, ties to even, as the hardware does.
float8_e4m3fn is wrong only where rounding carries into the next power of two, so PyTorch rounds it.
A process interprets kernels if `TRITON_INTERPRET=1` is set before it imports Triton.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.interpreter_speed import keep_what_repeats

if TYPE_CHECKING:
    from collections.abc import Callable

#: A quiet NaN of bfloat16. Rounding could turn other NaN patterns into infinity.
_NAN = np.uint16(0x7FC0)


def install() -> None:
    """Patch the interpreter of this process. A second call does nothing.

    Raises:
        RuntimeError: Triton compiles in this process.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("TRITON_INTERPRET=1 must be set before Triton is imported")
    from triton.runtime import interpreter  # noqa: PLC0415 only where kernels are interpreted

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "bfloat16_is_right", False):
        return
    builder.bfloat16_is_right = True
    _patch_casts(builder)
    for name in ("binary_op", "unary_op", "create_fma", "create_rsqrt", "create_erf"):
        setattr(builder, name, _in_float32(getattr(builder, name)))
    builder.ternary_op = _unless_selecting(builder.ternary_op)
    builder.create_dot = _with_wide_operands(builder.create_dot)
    builder.create_atomic_rmw = _refusing(builder.create_atomic_rmw)
    for operation in (interpreter.ReduceOps, interpreter.ScanOps):
        operation.apply_impl = _over_float32(operation.apply_impl)
    keep_what_repeats(interpreter)


def widen(bits: np.ndarray) -> np.ndarray:
    """Return float32 numbers whose upper halves are the uint16 patterns `bits`."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """Return the bit patterns of the nearest bfloat16 numbers; ties go to the even one."""
    wide = np.asarray(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), _NAN, rounded)


def round_to_float8(values: np.ndarray) -> np.ndarray:
    """Return the bit patterns of the nearest float8_e4m3fn; ties go to the even one."""
    import torch  # noqa: PLC0415

    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def _is_bf16(value: Any) -> bool:
    """Return whether a handle's or type's elements are bfloat16."""
    return getattr(getattr(value, "dtype", value), "name", "") == "bf16"


def _widened(value: Any) -> Any:
    if not (hasattr(value, "data") and _is_bf16(value)):
        return value
    import triton.language as tl  # noqa: PLC0415

    return type(value)(widen(value.data), tl.float32)


def _narrowed(value: Any) -> Any:
    import triton.language as tl  # noqa: PLC0415

    return type(value)(narrow(value.data), tl.bfloat16)


def _patch_casts(builder: Any) -> None:
    import triton.language as tl  # noqa: PLC0415

    plain_cast, plain_convert = builder.cast_impl, builder.create_fp_to_fp

    def cast(self: Any, source: Any, target: Any) -> Any:
        if _is_bf16(source) == _is_bf16(target.scalar):
            return plain_cast(self, source, target)
        wide = _widened(source)
        if _is_bf16(target.scalar):
            return _narrowed(plain_cast(self, wide, tl.float32))
        return plain_cast(self, wide, target)

    def convert(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target.scalar == tl.float8e4nv:
            return type(source)(round_to_float8(_widened(source).data), target.scalar)
        if _is_bf16(source) == _is_bf16(target.scalar):
            return plain_convert(self, source, target, rounding)
        if _is_bf16(target.scalar):
            if source.dtype.scalar == tl.float8e4nv:
                source = plain_convert(self, source, tl.float32, rounding)
            return cast(self, source, target)
        wide = _widened(source)
        same = target.scalar == tl.float32
        return wide if same else plain_convert(self, wide, target, rounding)

    builder.cast_impl, builder.create_fp_to_fp = cast, convert


def _in_float32(plain: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Any, *operands: Any) -> Any:
        result = plain(self, *map(_widened, operands))
        is_number = result.data.dtype == np.float32  # the result of a comparison is a bool
        return _narrowed(result) if is_number and any(map(_is_bf16, operands)) else result

    return operation


def _unless_selecting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Leave bit patterns as they are in `where`; widen in other operations of three operands."""
    computing = _in_float32(plain)

    def operation(self: Any, first: Any, second: Any, third: Any, function: Any) -> Any:
        chosen = plain if function is np.where else computing
        return chosen(self, first, second, third, function)

    return operation


def _with_wide_operands(plain: Callable[..., Any]) -> Callable[..., Any]:
    def dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return plain(self, _widened(left), _widened(right), *rest)

    return dot


def _refusing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(self: Any, operation: Any, pointer: Any, value: Any, *rest: Any) -> Any:
        if _is_bf16(value):
            raise TypeError("the interpreter has no atomic operations on bfloat16")
        return plain(self, operation, pointer, value, *rest)

    return atomic


def _over_float32(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Widen the operands of reductions and scans, which are the language's tensors."""

    def apply(self: Any, tensors: Any) -> Any:
        import triton.language as tl  # noqa: PLC0415

        is_narrow = [_is_bf16(tensor.handle) for tensor in tensors]
        if not any(is_narrow):
            return plain(self, tensors)

        def retyped(tensor: Any, handle: Any, scalar: Any) -> Any:
            kind = tensor.type
            kind = tl.block_type(scalar, kind.shape) if kind.is_block() else scalar
            return tl.tensor(handle, kind)

        wide = tuple(
            retyped(tensor, _widened(tensor.handle), tl.float32) if flag else tensor
            for tensor, flag in zip(tensors, is_narrow, strict=True)
        )
        results = plain(self, wide)
        several = isinstance(results, (tuple, list))
        # Results are in the order of the operands: values, then their indices.
        done = [
            retyped(tensor, _narrowed(tensor.handle), tl.bfloat16) if flag else tensor
            for tensor, flag in zip(results if several else [results], is_narrow, strict=False)
        ]
        return tuple(done) if several else done[0]

    return apply
