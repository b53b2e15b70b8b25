"""Packing on one core: how much real KV shrinks, and how fast, beside a copy and a checksum."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kernels.bf16_stream.native import (
    pack_ranges,
    pack_whole,
    stream_room,
    unpack_ranges,
    unpack_whole,
)
from kernels.native.block_copy import copy_blocks
from shared.connector.protocol.block_copy import block_ranges, checksum_blocks
from shared.engine.llm import LLM
from shared.kv.cut import Cut
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_MIB = 1 << 20


def kv_of(model: Path, text: str, num_tokens: int) -> NDArray[np.uint8]:
    """Return the KV blocks [n, block bytes] of a text's first tokens, as bfloat16."""
    llm = LLM(model, dtype="bfloat16", num_blocks=-(-num_tokens // 16) + 8, num_threads=1)
    tokens = llm.tokenizer.encode(text)[:num_tokens]
    llm.generate([tokens], SamplingParams(max_tokens=1))
    blocks = np.array(llm.engine.rank_memories[0].blocks[: len(tokens) // 16])
    llm.close()
    return blocks


def normal(num_bytes: int) -> NDArray[np.uint8]:
    """Return normally distributed numbers in blocks of 2 MiB."""
    numbers = np.random.default_rng(0).standard_normal(num_bytes // 2, np.float32)
    return (numbers.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(-1, 2 * _MIB)


def repeated(blocks: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
    """Return the blocks again and again, up to so many bytes."""
    return np.tile(blocks, (max(1, num_bytes // blocks.nbytes), 1))


def row(name: str, blocks: NDArray[np.uint8], rounds: int) -> Sequence[str]:
    """Measure: ratio, and GB/s of unpacked bytes of each step, the best of all rounds.

    Transfers do both with the checksums, and pack to memory that was used before; the disk tier
    does neither.
    """
    out = np.zeros_like(blocks)
    whole = [Cut(((0, blocks.shape[1]),))] * len(blocks)
    sources = block_ranges(blocks, range(len(blocks)), whole)
    targets = block_ranges(out, range(len(blocks)), whole)
    streams, _ = pack_ranges(sources)
    each, room, kept = list(blocks), list(out), np.empty(stream_room(sources), np.uint8)

    def rate(work: Callable[[], object]) -> str:
        best = float("inf")
        for _ in range(rounds):
            start_s = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start_s)
        return f"{blocks.nbytes / best / 1e9:.1f}"

    flat, stream = blocks.reshape(-1), pack_whole(blocks.reshape(-1))
    steps = (
        lambda: pack_whole(flat),
        lambda: unpack_whole(stream, out.reshape(-1)),
        lambda: pack_ranges(sources, kept),
        lambda: unpack_ranges(streams, targets),
        lambda: checksum_blocks(each),
        lambda: copy_blocks(room, each),
        lambda: np.copyto(out, blocks),
    )
    ratio = f"{blocks.nbytes / len(streams):.3f}"
    found = tuple(map(rate, steps[:4]))
    assert np.array_equal(out, blocks)
    return name, f"{blocks.nbytes / _MIB:.1f}", ratio, *found, *map(rate, steps[4:])


def table(subjects: dict[str, NDArray[np.uint8]], rounds: int) -> Table:
    """Measure every subject."""
    made = Table(
        *("", "MiB", "ratio", "pack", "unpack", "pack + checksum", "unpack + checksum", "checksum"),
        *("copy + checksum", "memcpy"),
        title="GB/s of unpacked bytes on one core, the best round",
    )
    for name, blocks in subjects.items():
        made.add_row(*row(name, blocks, rounds))
    return made
