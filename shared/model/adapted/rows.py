"""Which tokens of a step pass through which adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.low_rank import RowSegments
from kernels.low_rank.segments import append_rows
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernels.low_rank import Segment


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """A step with adapters, by token. A step without any has no such record."""

    num_tokens: int
    tokens: RowSegments
    #: The same for the tokens that are wanted, counted among themselves; None: all are.
    wanted: RowSegments | None = None
    num_wanted: int | None = None

    @classmethod
    def of_sequences(
        cls, query_lens: Sequence[int], slots: Sequence[int | None]
    ) -> AdapterRows | None:
        """Return the record of packed sequences; slots: by sequence, None: it has no adapter.

        None if no sequence has one. Neighbours with one adapter are computed together, so a batch
        whose sequences are ordered by adapter is computed fastest; any order is right.
        """
        found: list[Segment] = []
        start = 0
        for length, slot in zip(query_lens, slots, strict=True):
            if slot is not None:
                append_rows(found, start, start + length, slot)
            start += length
        return cls(start, RowSegments(tuple(found))) if found else None

    def wanting(self, wanted: Sequence[int] | None) -> AdapterRows:
        """Return the record of a step that wants only these tokens, ascending; None: all."""
        if wanted is None:
            return replace(self, wanted=None, num_wanted=None)
        return replace(self, wanted=self.tokens.only(wanted), num_wanted=len(wanted))

    def of(self, num_rows: int) -> RowSegments:
        """Return the segments of a linear's rows: of all tokens, or of the wanted ones.

        Their number says which: tokens are wanted once each, so as many as all are all.
        """
        if num_rows == self.num_tokens:
            return self.tokens
        if self.wanted is None or num_rows != self.num_wanted:
            raise InternalError(f"adapters of {self.num_tokens} tokens for {num_rows} rows")
        return self.wanted


class StepRows:
    """The adapters' rows of the step that a model computes: its linears read them.

    The model sets it when a step begins. Not for two threads at a time.
    """

    def __init__(self) -> None:
        #: None: no token has an adapter.
        self.rows: AdapterRows | None = None

    def begin(self, rows: AdapterRows | None, wanted: Sequence[int] | None) -> None:
        """Begin a step that wants only these tokens; None: all."""
        self.rows = None if rows is None else rows.wanting(wanted)
