"""A text as the tokens of which a vector is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VectorInput:
    """One text, with its special tokens."""

    token_ids: tuple[int, ...] = field(repr=False)
    #: Which part of the text each token belongs to; empty: all to the first.
    token_type_ids: tuple[int, ...] = field(default=(), repr=False)
