"""The blocks of a table that a sequence needs, by the kind of its group. Pure arithmetic.

A new kind is a value of `GroupKind` and a rule. The rule decides which blocks a cached prefix
needs, which ones a running sequence can free, and which ones a hand-off moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class GroupKind(StrEnum):
    """The part of a sequence that the layers of a group read; the value is its name on the wire."""

    #: Every earlier token.
    FULL = "full"
    #: The tokens in a window: as many as it is wide, the token itself among them.
    WINDOW = "window"
    #: The tokens of a chunk: those from the last multiple of its length on.
    CHUNK = "chunk"
    #: Every earlier token, of which there is one row: no values, and no heads.
    LATENT = "latent"
    #: One state, which every token changes. A block has the state after the last computed one of
    #: its tokens; only few blocks are kept.
    STATE = "state"


class GroupRule(Protocol):
    """The blocks that a sequence needs of a group of one kind."""

    @property
    def reach(self) -> int | None:
        """Number of tokens in front of a token that it reads at most; None: all; 0: its state."""
        ...

    def first_needed(self, num_tokens: int) -> int:
        """Return the first block that is read by the token after `num_tokens` tokens.

        The computation of that token and of later ones needs that block and all after it. The
        result never falls as `num_tokens` grows.
        """
        ...

    def first_moved(self, num_tokens: int) -> int:
        """Return the first block of a prompt of `num_tokens` tokens that a hand-off moves."""
        ...

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """Return the most leading blocks, from `first` to `most`, after which computation can
        continue.

        `is_there` returns whether block i is available; all before block `first` are, and there may
        be too many to check one by one. It is called for as few blocks as possible, and at least
        for all blocks from `first` on that the result needs.
        """
        ...


class FullRule:
    """The rule of layers that read every earlier token, its keys and values or its latent row."""

    @property
    def reach(self) -> int | None:
        """See `GroupRule.reach`."""
        return None

    def first_needed(self, num_tokens: int) -> int:
        """See `GroupRule.first_needed`."""
        return 0

    def first_moved(self, num_tokens: int) -> int:
        """See `GroupRule.first_moved`."""
        return 0

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """See `GroupRule.longest`."""
        for block in range(first, most):
            if not is_there(block):
                return block
        return most


@dataclass(frozen=True, slots=True)
class WindowRule:
    """The rule of layers with a window of `window` tokens, in blocks of `block_size`."""

    window: int
    block_size: int

    @property
    def reach(self) -> int | None:
        """See `GroupRule.reach`."""
        return self.window - 1

    def first_needed(self, num_tokens: int) -> int:
        """See `GroupRule.first_needed`."""
        return max(0, num_tokens - self.window + 1) // self.block_size

    def first_moved(self, num_tokens: int) -> int:
        """See `GroupRule.first_moved`. The receiver may compute the last token again."""
        return self.first_needed(max(0, num_tokens - 1))

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """See `GroupRule.longest`."""
        return _longest_tail(self, is_there, first, most)


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """The rule of layers whose tokens read those of their own chunk, in blocks of `block_size`.

    A chunk is the tokens from one multiple of `chunk` to the next. The first one of each reads no
    other: behind whole chunks nothing is needed.
    """

    chunk: int
    block_size: int

    @property
    def reach(self) -> int | None:
        """See `GroupRule.reach`."""
        return self.chunk - 1

    def first_needed(self, num_tokens: int) -> int:
        """See `GroupRule.first_needed`. It is the block in which the token's chunk begins."""
        return num_tokens // self.chunk * self.chunk // self.block_size

    def first_moved(self, num_tokens: int) -> int:
        """See `GroupRule.first_moved`. The receiver may compute the last token again."""
        return self.first_needed(max(0, num_tokens - 1))

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """See `GroupRule.longest`."""
        return _longest_tail(self, is_there, first, most)


@dataclass(frozen=True, slots=True)
class StateRule:
    """The rule of layers that read their state after the tokens so far, and nothing else."""

    block_size: int

    @property
    def reach(self) -> int | None:
        """See `GroupRule.reach`."""
        return 0

    def first_needed(self, num_tokens: int) -> int:
        """See `GroupRule.first_needed`. It is the block of the last token."""
        return max(0, num_tokens - 1) // self.block_size

    def first_moved(self, num_tokens: int) -> int:
        """See `GroupRule.first_moved`. No token can be computed again from its own state."""
        return self.first_needed(num_tokens)

    def longest(self, is_there: Callable[[int], bool], first: int, most: int) -> int:
        """See `GroupRule.longest`."""
        for end in range(most, first, -1):
            if is_there(end - 1):
                return end
        return first


def _longest_tail(
    rule: WindowRule | ChunkRule, is_there: Callable[[int], bool], first: int, most: int
) -> int:
    """See `GroupRule.longest`. It looks from the end: one missing block rules out all ends that
    need it.
    """
    end = block = most
    while block > max(first, rule.first_needed(end * rule.block_size)):
        block -= 1
        if not is_there(block):
            end = block
    return end


def needed_blocks(
    rules: Sequence[GroupRule], block_size: int, first_block: int, end: int
) -> tuple[range, ...]:
    """Return by group the blocks, from `first_block` to `end`, that the token behind them needs."""
    num_tokens = end * block_size
    firsts = (max(first_block, rule.first_needed(num_tokens)) for rule in rules)
    return tuple(range(min(end, first), end) for first in firsts)


def longest_prefix(
    rules: Sequence[GroupRule], is_there: Sequence[Callable[[int], bool]], first: int, most: int
) -> int:
    """Return the most leading blocks after which the computation of every group can continue.

    `is_there`: by group; see `GroupRule.longest`.
    """
    while True:
        num = most
        for rule, has_block in zip(rules, is_there, strict=True):
            num = rule.longest(has_block, first, num)
        if num == most or len(rules) == 1:
            return num
        most = num
