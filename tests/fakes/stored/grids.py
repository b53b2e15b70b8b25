"""Rounding to small floats, by trying all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """Floats of so many bits of exponent and mantissa, without infinities."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        """Bits of a code, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def magnitudes(self) -> Tensor:
        """All of them by code, ascending."""
        bias, found = 2 ** (self.exponent_bits - 1) - 1, []
        for exponent in range(2**self.exponent_bits):
            for mantissa in range(2**self.mantissa_bits):
                part = mantissa / 2**self.mantissa_bits
                if exponent:
                    found.append((1 + part) * 2.0 ** (exponent - bias))
                else:
                    found.append(part * 2.0 ** (1 - bias))
        is_e4m3 = (self.exponent_bits, self.mantissa_bits) == (4, 3)
        return torch.tensor(found[:-1] if is_e4m3 else found)  # its last one is no number

    @property
    def top_exponent(self) -> int:
        """Exponent of the largest magnitude."""
        return int(self.magnitudes[-1].log2().floor())

    def encode(self, x: Tensor) -> Tensor:
        """Codes of the nearest magnitudes, in the middle of even ones; the sign is in front."""
        own = self.magnitudes
        size = x.abs().clamp(max=float(own[-1]))
        above = torch.searchsorted(own, size).clamp(max=len(own) - 1)
        below = (above - 1).clamp(min=0)
        to_above, to_below = own[above] - size, size - own[below]
        takes_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
        code = torch.where(takes_above, above, below)
        return code + (x < 0) * 2 ** (self.bits - 1)

    def decode(self, codes: Tensor) -> Tensor:
        """The numbers of codes."""
        is_negative = codes >= 2 ** (self.bits - 1)
        size = self.magnitudes[codes % 2 ** (self.bits - 1)]
        return torch.where(is_negative, -size, size)

    def powers(self, peaks: Tensor) -> Tensor:
        """Exponents of two for numbers up to `peaks`, which are first rounded to a mantissa."""
        mantissa, exponent = torch.frexp(peaks)  # from 1/2 to 1
        step = 2.0 ** (self.mantissa_bits + 1)
        # In the middle between two, the larger one.
        rounded = torch.floor(mantissa.double() * step + 0.5) / step
        exponent = exponent - 1 + (rounded >= 1)
        return torch.where(peaks == 0, -127, exponent - self.top_exponent).clamp(-127, 127)


E2M1, E2M3, E3M2, E4M3 = Grid(2, 1), Grid(2, 3), Grid(3, 2), Grid(4, 3)
