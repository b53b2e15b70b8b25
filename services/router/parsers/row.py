"""A row of the tables of formats: one format, its names, and how to recognise it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[F]):
    """One format. docs/tools.md has the same rows; a test compares them."""

    #: Names of the format. Those after the first are vLLM's names of other families' parsers.
    names: tuple[str, ...]
    format: F
    #: For the documentation: what a model of this format writes, and which models those are.
    writes: str
    families: str
    #: Groups of texts. A chat template that contains all of a group shows the format.
    signs: tuple[tuple[str, ...], ...] = ()
    #: Texts of other formats with the same signs.
    unlike: tuple[str, ...] = ()

    def is_shown_by(self, template: str) -> bool:
        """Return whether a chat template's source shows that the model uses this format."""
        if any(text in template for text in self.unlike):
            return False
        return any(all(text in template for text in group) for group in self.signs)
