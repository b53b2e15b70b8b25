"""Which blocks of a table a sequence needs, by the kind of its group. Pure arithmetic.

A new kind is a value of `GroupKind` and a rule. What must be there for a cached prefix to be used,
what a running sequence can give back, and what a hand-off moves all follow from the rule.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class GroupKind(StrEnum):
    """What the layers of a group read of a sequence; the value is its name on the wire."""

    #: Every earlier token.
    FULL = "full"


class GroupRule(Protocol):
    """Which blocks a sequence needs of a group of one kind."""

    def first_needed(self, num_tokens: int) -> int:
        """Return the first block that is read by the token behind `num_tokens` tokens.

        That block and all behind it must be there to compute that token and later ones. It never
        falls as `num_tokens` grows.
        """
        ...

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """Return the most leading blocks, from `first` to `most`, behind which one can go on.

        `is_there` says whether block i can be had; those in front of block `first` are there, and
        may be more than can be counted one by one. It is asked for as few blocks as may be, and at
        least for all from `first` on that the result needs.
        """
        ...


class FullRule:
    """The rule of layers that read every earlier token."""

    def first_needed(self, num_tokens: int) -> int:
        """See `GroupRule.first_needed`."""
        return 0

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """See `GroupRule.longest`."""
        for block in range(first, most):
            if not is_there(block):
                return block
        return most
