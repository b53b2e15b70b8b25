"""What a rank reads of a part of the model: ranges of its rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's share of a part, whose rows are in the model's order."""

    #: None: all.
    rows: tuple[range, ...] | None = None
    #: Of a matrix: the inputs that the rank has; None: all.
    columns: range | None = None
    #: The rank has zeros in its place: another one's values are in the sum over ranks.
    is_zero: bool = False
    #: Other ranks have the part's module.
    is_elsewhere: bool = False

    def row_numbers(self, stored: Sequence[int] | None) -> Sequence[int] | None:
        """Return the stored rows that are read, in their order; None: all, as they are stored.

        stored: by row of the part, the stored row; None: the same.
        """
        if self.rows is None:
            return stored
        numbers = chain.from_iterable(self.rows)
        return list(numbers) if stored is None else [stored[row] for row in numbers]


#: Every rank has all of the part.
WHOLE = Cut()
ELSEWHERE = Cut(is_elsewhere=True)
ZERO = Cut(is_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCut:
    """A rank's share of a linear, or of another module with a weight."""

    #: By projection: its rows in the whole model.
    sizes: tuple[int, ...] = ()
    #: By projection: the ranges of its rows that the rank has. Empty: all.
    rows: tuple[tuple[range, ...], ...] = ()
    columns: range | None = None
    #: Inputs of the whole.
    num_inputs: int = 0
    #: The results of all ranks are added up, so that one of them has the bias.
    is_summed: bool = False

    def of(self, index: int | None, *, is_bias: bool, rank: int) -> Cut:
        """Return the cut of a projection, or of all of them, one behind the other."""
        if is_bias and self.is_summed:
            return WHOLE if rank == 0 else ZERO
        columns = None if is_bias else self.columns
        if not self.rows:
            return Cut(columns=columns)
        if index is not None:
            return Cut(self.rows[index], columns)
        found, start = [], 0
        for size, ranges in zip(self.sizes, self.rows, strict=True):
            found += [range(start + own.start, start + own.stop) for own in ranges]
            start += size
        return Cut(tuple(found), columns)


def outputs(*projections: tuple[int, tuple[range, ...]]) -> ModuleCut:
    """Return the cut of a module by outputs; by projection its size, and the rank's rows."""
    return ModuleCut(
        sizes=tuple(size for size, _ in projections), rows=tuple(rows for _, rows in projections)
    )


def inputs(num: int, columns: range) -> ModuleCut:
    """Return the cut of a linear by its `num` inputs. The results of all ranks are added up."""
    return ModuleCut(columns=columns, num_inputs=num, is_summed=True)


def scaled(heads: range, size: int, start: int = 0) -> range:
    """Return the numbers of heads of `size` numbers each, of which the first is number `start`."""
    return range(start + heads.start * size, start + heads.stop * size)
