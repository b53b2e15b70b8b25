"""How a matrix of few bits is stored: its tensors, their packing, and what their numbers mean.

A format is a reader of configs that returns these records. They hold no tensor, and need no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.matrix.rounding import Element, Rounding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.model.checkpoint.files.tensor_files import TensorHeader

#: By dtype as safetensors spells it: bits of its words.
WORD_BITS = {"I32": 32, "U8": 8}
FLOATS = ("F32", "BF16", "F16")
FLOAT8 = {Element.E4M3: "F8_E4M3", Element.E5M2: "F8_E5M2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A stream of bits: number i of a line has the bits from `i * bits` on, the lowest first."""

    bits: int
    #: A line is a row of the matrix, not a column.
    is_along_rows: bool = True
    #: Of each eight numbers in a word: the place of each; None: their order.
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """All numbers of a matrix, row behind row, in as many parts as a word has numbers.

    Word i has number i of each part, that of the first part in its highest bits. The words lie in
    rows of a group, or in columns of one.
    """

    bits: int
    group: int
    is_along_rows: bool = True

    @property
    def num_parts(self) -> int:
        """Numbers of a word: of 8 bits, or of 32 if they have 3."""
        return 10 if self.bits == 3 else 8 // self.bits

    def shape(self, size: int) -> tuple[int, int]:
        """Return the shape of the words of so many numbers."""
        groups = size // self.group
        if self.is_along_rows:
            return -(-groups // self.num_parts), self.group
        return -(-self.group // self.num_parts), groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A stored tensor of numbers by row and column."""

    #: What its name has behind that of the linear.
    suffix: str
    dtypes: tuple[str, ...]
    #: Stored as [columns, rows].
    is_turned: bool = False
    #: None: one number in each element.
    packing: Packing | None = None
    #: Bytes of a line are cut in pieces of so many, in a dimension of their own.
    piece: int | None = None
    #: All are in one column, line by line.
    is_flat: bool = False
    #: How its words lie, if numbers of a word are far apart.
    planes: Planes | None = None
    #: It has the numbers of the first of so many equal parts of the rows, line by line, and so of
    #: every part.
    repeats: int = 1

    def shape(self, rows: int, columns: int, dtype: str) -> tuple[int, ...]:
        """Return the stored shape of a matrix, in this dtype."""
        if self.planes is not None:
            return self.planes.shape(rows * columns)
        if self.packing is not None:
            word = WORD_BITS[dtype]
            if self.packing.is_along_rows:
                columns = -(-columns * self.packing.bits // word)
            else:
                rows = -(-rows * self.packing.bits // word)
        if self.piece is not None:
            return rows, columns // self.piece, self.piece
        if self.is_flat:
            return rows * columns // self.repeats, 1
        return (columns, rows) if self.is_turned else (rows, columns)

    def size(self, shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
        """Return the rows, of all experts, and the columns of a tensor stored with this shape.

        Where the last word of a line is not full, its numbers are counted, too.
        """
        *stacked, rows, columns = shape if self.piece is None else shape[:-1]
        if self.piece is not None:
            columns *= self.piece
        elif self.is_turned:
            rows, columns = columns, rows
        rows *= prod(stacked)
        if self.packing is None:
            return rows, columns
        word, bits = WORD_BITS[dtype], self.packing.bits
        if self.packing.is_along_rows:
            return rows, columns * word // bits
        return rows * word // bits, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A scalar by which all scales of a matrix are multiplied, or divided."""

    suffix: str
    divides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Scales in 8 bits: places in a table; a run of them has a scale, and all have an offset."""

    #: Suffixes of the table, and of the scales of scales.
    table: str
    scales: str
    #: How many follow each other with one scale.
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tensors of a matrix, W = (code - zero) * scale."""

    element: Element
    bits: int
    codes: Array
    scales: Array
    #: Scales are exponents of two, 127 being added.
    are_powers: bool = False
    factor: Factor | None = None
    #: A constant of the format, by which they are multiplied.
    scale_factor: float = 1.0
    nested: Nested | None = None
    #: Of a tensor with the number that each code stands for.
    table: str | None = None
    #: Of a JSON object in bytes, with `shape`, `blocksize` and the offset of nested scales.
    state: str | None = None
    #: By suffix: integers that must be stored, or another reader would be needed.
    constants: Mapping[str, int] = field(default_factory=dict)
    zeros: Array | None = None
    #: Zeros are floats. Codes are from 0 on, and W is computed in its own dtype.
    has_float_zeros: bool = False
    #: What is added to stored zeros, modulo their range.
    zero_step: int = 0
    #: Integers are stored with half of their range added, zeros too. Otherwise as two's complement.
    is_offset: bool = False
    #: Columns that share a scale; None: all.
    group: int | None = None
    #: The format has no last group that is shorter.
    has_whole_groups: bool = False
    #: Rows that share a scale; None: all.
    row_range: int | None = 1
    #: Of the tensor with the group of each column.
    column_groups: str | None = None
    inputs: Rounding | None = None
    #: Of the scalar that the rounding of inputs reads, and of their zero.
    input_stored: str | None = None
    input_zero: str | None = None
    #: Of a tensor with the numbers of rows and columns.
    size: str | None = None
    #: What the name of the dense tensor has behind that of the linear.
    dense_suffix: str = ".weight"
    #: The dense tensor has a matrix for each expert, with columns for rows.
    is_of_experts: bool = False

    @property
    def arrays(self) -> Sequence[Array]:
        """The tensors by row and column."""
        return [each for each in (self.codes, self.scales, self.zeros) if each is not None]

    @property
    def has_words(self) -> bool:
        """Whether rows are words of eight integers of 4 bits, with scales of their own.

        The first integer is the lowest one, and 8 is added to each. Or they become such: those of
        eight rows are in words, column by column.
        """
        packing = self.codes.packing
        is_plain = self.element is Element.INT and self.is_offset and self.table is None
        return (
            is_plain
            and packing is not None
            and packing.bits == 4
            and (packing.order is None or not packing.is_along_rows)
            and (self.codes.is_turned or packing.is_along_rows)
            and self.codes.dtypes == ("I32",)
            and self.codes.piece is None
            and not self.codes.is_flat
            and self.row_range == 1
            and self.column_groups is None
            and self.inputs is None
        )

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the numbers of ranges of rows, and of groups of columns."""
        ranges = 1 if self.row_range is None else -(-rows // self.row_range)
        return ranges, 1 if self.group is None else -(-columns // self.group)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in a checkpoint's files."""

    #: What the names of its tensors begin with.
    module: str
    layout: Layout
    #: Its tensors, by what their names have behind that.
    headers: Mapping[str, TensorHeader]

    @property
    def codes(self) -> TensorHeader:
        """The header of its codes.

        Raises:
            ModelLoadError: there are none.
        """
        return self.header(self.layout.codes.suffix)

    @property
    def path(self) -> Path:
        """The file of one of its tensors."""
        return next(iter(self.headers.values())).path

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of its tensors."""
        return next(iter(self.headers.values())).shape

    def header(self, suffix: str) -> TensorHeader:
        """Return the header of one of its tensors.

        Raises:
            ModelLoadError: it is missing.
        """
        if suffix not in self.headers:
            beside = self.module + next(iter(self.headers))
            raise ModelLoadError(
                f"{self.path}: tensor {self.module + suffix!r} is missing beside {beside!r}"
            )
        return self.headers[suffix]
