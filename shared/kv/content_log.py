"""The tokens of published blocks, for KV events with tokens. Off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Maximum of blocks kept until a reader takes them; the oldest are dropped first.
MAX_BLOCKS = 65_536


class BlockContent(NamedTuple):
    """The content that a block hash was computed from."""

    #: The hash of the previous block, None for a sequence's first.
    parent: bytes | None
    token_ids: tuple[int, ...]
    #: Digest of the adapter; empty: none.
    adapter: bytes = b""


class ContentLog:
    """Content by hash. The engine's thread adds, another one takes.

    Each operation is one step on a dict, so neither waits for the other.
    """

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._contents: dict[bytes, BlockContent] = {}

    def note(
        self,
        block_hashes: Sequence[bytes],
        token_ids: Sequence[int],
        *,
        first: int,
        block_size: int,
        adapter: bytes = b"",
    ) -> None:
        """Record the publication of blocks `first` and up of a sequence with these hashes,
        tokens and adapter.
        """
        for number in range(first, len(block_hashes)):
            parent = block_hashes[number - 1] if number else None
            tokens = tuple(token_ids[number * block_size : (number + 1) * block_size])
            self._contents[block_hashes[number]] = BlockContent(parent, tokens, adapter)
        while len(self._contents) > self._max_blocks:
            self._contents.pop(next(iter(self._contents)), None)

    def take(self, block_hash: bytes) -> BlockContent | None:
        """Remove and return the content of a block; None if it is unknown, or was dropped."""
        return self._contents.pop(block_hash, None)
