"""Requests of a workload as prompts of token ids: equal blocks, equal tokens."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.load.workload.arrivals import Arrival as Due
from benchmarks.load.workload.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.routing.traces import Arrival


def make_samples(
    arrivals: Sequence[Arrival], *, salt: str, block_size: int, words: range
) -> list[Sample]:
    """Return the prompts, of token ids in `words`. Another salt gives others: they share no block.

    What a conversation's later turn has in place of the answer are tokens at random, as the rest of
    it: systems that write other answers get the same prompts.
    """
    blocks: dict[bytes, list[int]] = {}

    def tokens_of(block: bytes) -> list[int]:
        if block not in blocks:
            blocks[block] = _tokens(salt.encode() + block, block_size, words)
        return blocks[block]

    samples = []
    for number, arrival in enumerate(arrivals):
        num_blocks = -(-arrival.num_tokens // block_size)
        hashes = arrival.hashes[:num_blocks]
        prompt = [token for block in hashes for token in tokens_of(block)]
        while len(prompt) < arrival.num_tokens:  # a part of a block that has no hash
            prompt += _tokens(f"{salt} {number} {len(prompt)}".encode(), block_size, words)
        prompt = prompt[: arrival.num_tokens]
        samples.append(Sample(prompt, len(prompt), arrival.num_output_tokens))
    return samples


def due(arrivals: Sequence[Arrival]) -> list[Due]:
    """Return when each is to be sent."""
    return [Due(arrival.at_s, 0.0) for arrival in arrivals]


def _tokens(text: bytes, num: int, words: range) -> list[int]:
    drawn = np.frombuffer(hashlib.shake_128(text).digest(4 * num), dtype="<u4")
    tokens: list[int] = (words.start + drawn % len(words)).tolist()
    return tokens
