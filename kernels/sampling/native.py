"""Choosing tokens by the native library: each row by one thread of a pool, or all by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.native.library import load_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernels.sampling.drawing import Filters

#: `baton::RowChoice`.
ROW_CHOICE = np.dtype(
    [
        ("number", "f8"), ("top_k", "i8"),
        ("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("", "f4"),
    ],
)  # fmt: skip
#: `baton::RowDraw`.
ROW_DRAW = np.dtype([("seed", "u8"), ("index", "u4"), ("purpose", "u4")])


@dataclass(frozen=True, slots=True)
class RowChoices:
    """How the tokens of rows are chosen, apart from their positions."""

    #: ROW_CHOICE [n], contiguous; the library writes the rows' numbers.
    rows: NDArray[np.void]
    #: ROW_DRAW [n], contiguous; None: all rows are greedy.
    draws: NDArray[np.void] | None


def launch(logits: torch.Tensor, numbers: torch.Tensor, filters: Filters) -> torch.Tensor:
    """See `kernels.sampling.choose_tokens`. The caller's thread does all rows."""
    choices = np.empty(len(logits), ROW_CHOICE)
    choices["number"] = numbers.numpy()
    for name in ("temperature", "top_k", "top_p", "min_p"):
        choices[name] = getattr(filters, name).numpy()
    return torch.from_numpy(choose_rows(logits, choices, None))


def choose_rows(
    logits: torch.Tensor, choices: NDArray[np.void], pool: int | None
) -> NDArray[np.int64]:
    """Return int64 [n] of `logits`, float32 [n, vocab]; see `kernels.sampling.choose_tokens`.

    choices: ROW_CHOICE [n], contiguous. `pool`, of the native library, must have no other work.

    Raises:
        ValueError: logits of another dtype or order.
        MemoryError: there is no memory for the filters.
        NativeUnavailableError: see `load_library`.
    """
    num_rows, vocab_size = logits.shape
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits of {logits.dtype} {logits.stride()}")
    tokens = np.empty(num_rows, np.int64)
    failed = load_library().baton_choose_tokens(
        pool, logits.data_ptr(), logits.stride(0), num_rows, vocab_size,
        choices.ctypes.data, tokens.ctypes.data,
    )  # fmt: skip
    if failed:
        raise MemoryError(f"no memory for the choice among {vocab_size} tokens")
    return tokens


def draw_uniforms(draws: NDArray[np.void], positions: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return one number in [0, 1) per stream and position: Philox4x32-10, 53 bits.

    draws: ROW_DRAW [n], contiguous.
    """
    numbers = np.empty(len(draws))
    load_library().baton_draw_uniforms(
        draws.ctypes.data, positions.ctypes.data, len(draws), numbers.ctypes.data
    )
    return numbers
