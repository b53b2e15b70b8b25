"""Hidden states of prompts, in blocks of the pool: there a peer can send them from and to.

A head that drafts on a decode worker goes on from the target's hidden states, and those of a prompt
are where the prompt is computed. The sender's engine writes them as it computes, the receiver's
hands them to its proposer (`states_pool`). The blocks belong to the sequence, like those of its KV,
and go back with them at the latest. What is in them is never hashed, published or offloaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesFormat:
    """What a row, which is one token's, consists of, and how rows lie in blocks."""

    #: As in `HiddenNeeds`; behind each other in this order, the final state last.
    layers: tuple[int, ...]
    final: bool
    #: Of the target's weights, in which heads compute.
    dtype: str
    #: Numbers in a row.
    row_size: int
    row_bytes: int
    #: A row never lies in two blocks.
    rows_per_block: int

    def num_blocks(self, num_rows: int) -> int:
        """Blocks that so many rows take."""
        return -(-num_rows // self.rows_per_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesWish:
    """A request wants blocks for the states of its tokens. It does without if they are short."""

    format: StatesFormat
    #: Position of the token in the first row; None: the first that is not in the prefix cache.
    first_position: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedStates:
    """The blocks that hold a sequence's hidden states."""

    format: StatesFormat
    #: Position of the token in the first row.
    first_position: int
    #: So many leading blocks' worth of rows have no block: their tokens are not computed here.
    num_skipped: int
    blocks: tuple[int, ...]

    @classmethod
    def plan(cls, wish: StatesWish, *, num_cached_tokens: int, num_tokens: int) -> tuple[int, int]:
        """How many leading blocks are not needed, and how many are, of a sequence."""
        first = num_cached_tokens if wish.first_position is None else wish.first_position
        num_skipped = max(0, num_cached_tokens - first) // wish.format.rows_per_block
        return num_skipped, wish.format.num_blocks(num_tokens - first) - num_skipped

    @property
    def begin(self) -> int:
        """Position of the first token that has a place."""
        return self.first_position + self.num_skipped * self.format.rows_per_block

    def num_final(self, num_tokens: int) -> int:
        """How many blocks are final, skipped ones included, once so many tokens are computed."""
        num_blocks = max(0, num_tokens - self.first_position) // self.format.rows_per_block
        return min(max(num_blocks, self.num_skipped), self.num_skipped + len(self.blocks))
