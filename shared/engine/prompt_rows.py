"""Final hidden states of a prompt that a request asks for in place of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class PromptRows(StrEnum):
    """Which of them. A state is what the output head reads: it is behind the last norm."""

    #: That of the last token: [1, hidden].
    LAST = "last"
    #: That of the first token: [1, hidden].
    FIRST = "first"
    #: Their sum: [1, hidden].
    SUM = "sum"
    #: All: [num_tokens, hidden].
    ALL = "all"

    @property
    def is_of_all(self) -> bool:
        """Whether every token must be computed: a block of the prefix cache has no states."""
        return self is not PromptRows.LAST

    def are_in(self, first: int, end: int, num_tokens: int) -> bool:
        """Return whether the tokens from `first` up to `end`, of so many, have a part of them."""
        match self:
            case PromptRows.LAST:
                return end >= num_tokens
            case PromptRows.FIRST:
                return first == 0
            case _:
                return True


@dataclass(slots=True)
class GatheredRows:
    """The states of a sequence that are computed so far."""

    which: PromptRows
    #: float32 [n, hidden] each, by step.
    _parts: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, which: PromptRows | None) -> GatheredRows | None:
        """Return none of them yet; None if none are wanted."""
        return None if which is None else cls(which)

    def add(self, rows: Tensor) -> None:
        """Take a step's part: float32 [n, hidden] on the host."""
        if self.which is PromptRows.SUM and self._parts:
            self._parts[0] = self._parts[0] + rows
        else:
            self._parts.append(rows)

    def take(self) -> tuple[Tensor, ...]:
        """Return the parts in the order of tokens, and forget them."""
        parts, self._parts = tuple(self._parts), []
        return parts
