"""Hidden states of prompts, in blocks of the pool: peers send them from there and to there.

A draft head on a decode worker continues from the target's hidden states, and those of a prompt are
on the worker that computes it. The sender's engine writes them during the computation; the
receiver's engine passes them to its proposer (`hidden`). The blocks belong to the sequence,
like those of its KV, and are freed with them at the latest. Their content is never hashed,
published or offloaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenFormat:
    """Content of a row, which belongs to one token, and the layout of rows in blocks."""

    #: As in `HiddenNeeds`; concatenated in this order, the final state last.
    layers: tuple[int, ...]
    final: bool
    #: Dtype of the target's weights, in which heads compute.
    dtype: str
    #: Elements per row.
    row_size: int
    row_bytes: int
    #: No row spans two blocks.
    rows_per_block: int

    def num_blocks(self, num_rows: int) -> int:
        """Return the number of blocks for this number of rows."""
        return -(-num_rows // self.rows_per_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenWish:
    """A request for blocks for the states of a sequence's tokens; dropped if blocks are short."""

    format: HiddenFormat
    #: Position of the token in the first row; None: the first token not in the prefix cache.
    first_position: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedHidden:
    """The blocks with a sequence's hidden states."""

    format: HiddenFormat
    #: Position of the token in the first row.
    first_position: int
    #: Number of leading blocks that are left out: their tokens are not computed here.
    num_skipped: int
    blocks: tuple[int, ...]

    @classmethod
    def plan(cls, wish: HiddenWish, *, num_cached_tokens: int, num_tokens: int) -> tuple[int, int]:
        """Return how many leading blocks of a sequence are not needed, and how many are."""
        first = num_cached_tokens if wish.first_position is None else wish.first_position
        num_skipped = max(0, num_cached_tokens - first) // wish.format.rows_per_block
        return num_skipped, wish.format.num_blocks(num_tokens - first) - num_skipped

    @property
    def begin(self) -> int:
        """Position of the first token that has a row."""
        return self.first_position + self.num_skipped * self.format.rows_per_block

    def num_final(self, num_tokens: int) -> int:
        """Return how many blocks are final after this number of computed tokens, skipped ones
        included.
        """
        num_blocks = max(0, num_tokens - self.first_position) // self.format.rows_per_block
        return min(max(num_blocks, self.num_skipped), self.num_skipped + len(self.blocks))
