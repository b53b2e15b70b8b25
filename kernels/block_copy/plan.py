"""Plans a copy between two layouts: the longest runs that are contiguous on both sides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class HeadRange(NamedTuple):
    """`num` heads: from `source` on in the source, from `target` on in the target."""

    source: int
    target: int
    num: int


class CopyPlan(NamedTuple):
    """A copy as chunks of tokens times layers times kinds times heads, each one contiguous run."""

    num_chunks: int
    num_layers: int
    num_kinds: int
    num_heads: int
    #: Words of one run.
    run: int
    #: Tokens of a chunk: the largest number that divides the blocks of both sides.
    chunk_tokens: int


def count_tokens(
    num_source_blocks: int, source_size: int, num_target_blocks: int, target_size: int
) -> int:
    """Return the number of tokens that both sides hold."""
    return min(num_source_blocks * source_size, num_target_blocks * target_size)


def plan_copy(
    *,
    num_tokens: int,
    source_size: int,
    target_size: int,
    token_words: int,
    sizes: Sequence[int],
    source_strides: Sequence[int],
    target_strides: Sequence[int],
) -> CopyPlan:
    """Join dimensions that are contiguous on both sides, from the innermost one outwards.

    sizes: layers, kinds and heads that are copied; strides of these, and `token_words`, in words.
    """
    chunk_tokens = math.gcd(source_size, target_size)
    run = chunk_tokens * token_words
    left = list(sizes)
    for dimension in reversed(range(len(left))):
        strides = {source_strides[dimension], target_strides[dimension]}
        if left[dimension] != 1 and strides != {run}:
            break
        run *= left[dimension]
        left[dimension] = 1
    num_layers, num_kinds, num_heads = left
    return CopyPlan(num_tokens // chunk_tokens, num_layers, num_kinds, num_heads, run, chunk_tokens)
