"""What is asked when: Mooncake's traces, and a workload with one hot prefix."""

from __future__ import annotations

import json
import lzma
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = Path(__file__).parent / "data"
NAMES = ("conversation", "synthetic")
BLOCK_SIZE = 512


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    at_s: float
    num_tokens: int
    num_output_tokens: int
    #: Of all blocks of the prompt; the last one may be partly filled.
    hashes: tuple[bytes, ...]
    #: Digest of the adapter; empty: none.
    adapter: bytes = b""


def read_trace(name: str, num_requests: int | None = None) -> list[Arrival]:
    """The first requests of a trace of data/, all of them by default."""
    arrivals = []
    with lzma.open(DATA / f"{name}_trace.jsonl.xz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            arrivals.append(
                Arrival(
                    row["timestamp"] / 1000,
                    row["input_length"],
                    row["output_length"],
                    tuple(_hash(block) for block in row["hash_ids"]),
                )
            )
            if len(arrivals) == num_requests:
                break
    return arrivals


def hot_prefix(
    *,
    num_requests: int,
    share: float = 0.5,
    num_prefix_blocks: int = 12,
    num_own_blocks: int = 3,
    seed: int = 1,
) -> list[Arrival]:
    """Prompts of which `share` begin with the same blocks and the others with none in common.

    They come at random, one per second on average.
    """
    rng = random.Random(seed)
    prefix = [_hash(i) for i in range(num_prefix_blocks)]
    at_s = 0.0
    num_blocks = num_prefix_blocks + num_own_blocks
    arrivals = []
    for number in range(num_requests):
        at_s += rng.expovariate(1.0)
        own = [_hash((number + 1) * 1000 + i) for i in range(num_blocks)]
        is_hot = rng.random() < share
        hashes = prefix + own[num_prefix_blocks:] if is_hot else own
        arrivals.append(Arrival(at_s, num_blocks * BLOCK_SIZE, 100, tuple(hashes)))
    return arrivals


def at_rate(arrivals: Sequence[Arrival], work_s: float, num_workers: int) -> list[Arrival]:
    """The same requests in time for `num_workers` to have `work_s` of work each, evenly stretched.

    The last one comes when they would be through if they were never idle.
    """
    first_s = arrivals[0].at_s
    span_s = arrivals[-1].at_s - first_s
    scale = work_s / num_workers / span_s
    return [replace(a, at_s=(a.at_s - first_s) * scale) for a in arrivals]


def _hash(number: int) -> bytes:
    return number.to_bytes(8, "little")


def zipf_adapters(
    *,
    num_requests: int,
    num_adapters: int = 100,
    exponent: float = 1.0,
    num_blocks: int = 2,
    seed: int = 1,
) -> list[Arrival]:
    """Prompts without a common block; adapter i is asked for in proportion to 1 / i**exponent.

    They come at random, one per second on average.
    """
    rng = random.Random(seed)
    digests = [_hash(i).ljust(32, b"a") for i in range(num_adapters)]
    weights = [1 / (i + 1) ** exponent for i in range(num_adapters)]
    at_s = 0.0
    arrivals = []
    for number in range(num_requests):
        at_s += rng.expovariate(1.0)
        hashes = tuple(_hash((number + 1) * 1000 + i) for i in range(num_blocks))
        [adapter] = rng.choices(digests, weights)
        arrivals.append(Arrival(at_s, num_blocks * BLOCK_SIZE, 100, hashes, adapter))
    return arrivals
