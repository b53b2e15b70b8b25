"""Types whose numbers are codes with a scale for each group of neighbours, and blocks of them.

A number is code * scale, or code * scale - offset, each operation rounded to float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.gguf import unpacking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.gguf.types import TensorType
    from shared.gguf.unpacking import Bytes, Scales

#: Bytes of codes that are made at a time: they stay in a core's cache.
_AT_ONCE = 1 << 19


@dataclass(frozen=True, slots=True)
class Form:
    """How numbers of a type are made of codes."""

    bits: int
    #: Numbers that share a scale.
    group: int
    #: Write the codes of blocks [n, block_bytes] to [n, block_values]; return scales and offsets
    #: by block.
    unpack: Callable[[Bytes, Bytes], tuple[Scales, Scales | None]]
    #: Codes are E4M3, not integers.
    is_float: bool = False
    #: The integers that codes stand for; None: themselves.
    table: tuple[int, ...] | None = None


_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#: By type. Those of the others share no scale, or are chosen from a table by several at once.
FORMS: Mapping[str, Form] = {
    "Q4_0": Form(4, 32, unpacking.q4_0),
    "Q4_1": Form(4, 32, unpacking.q4_1),
    "Q5_0": Form(5, 32, unpacking.q5_0),
    "Q5_1": Form(5, 32, unpacking.q5_1),
    "Q8_0": Form(8, 32, unpacking.q8_0),
    "Q2_K": Form(2, 16, unpacking.q2_k),
    "Q3_K": Form(3, 16, unpacking.q3_k),
    "Q4_K": Form(4, 32, unpacking.q4_k),
    "Q5_K": Form(5, 32, unpacking.q5_k),
    "Q6_K": Form(6, 16, unpacking.q6_k),
    "IQ4_NL": Form(4, 32, unpacking.iq4_nl, table=_UNEVEN),
    "IQ4_XS": Form(4, 32, unpacking.iq4_xs, table=_UNEVEN),
    "MXFP4": Form(4, 32, unpacking.mxfp4, is_float=True),
}


@dataclass(frozen=True, slots=True)
class Coded:
    """Numbers of some blocks, one after the other."""

    codes: Bytes
    scales: Scales
    offsets: Scales | None


def read_codes(data: Bytes, kind: TensorType) -> Coded:
    """Return the codes of a type in `FORMS` whose blocks are in `data`."""
    form = FORMS[kind.name]
    blocks = data.reshape(-1, kind.block_bytes)
    codes = np.empty((len(blocks), kind.block_values), np.uint8)
    step = _AT_ONCE // kind.block_values
    # Scales that are not finite are the caller's.
    with np.errstate(invalid="ignore"):
        parts = [
            form.unpack(blocks[start : start + step], codes[start : start + step])
            for start in range(0, len(blocks), step)
        ]
    scales = np.concatenate([scales for scales, _ in parts])
    offsets = [offsets for _, offsets in parts if offsets is not None]
    return Coded(codes, scales, np.concatenate(offsets) if offsets else None)
