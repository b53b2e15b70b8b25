"""Requests of some kinds, at random: made to compare places of prompts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from benchmarks.routing.traces import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[[random.Random, float], Iterator[Arrival]]

BLOCK_SIZE = 64
#: Of a load that shifts from one kind to the other.
PERIOD_S = 60.0


def arrivals(
    name: str, *, rate_ms: float, span_s: float, work_ms: Callable[[Arrival], float], seed: int
) -> list[Arrival]:
    """Return requests whose work comes at `rate_ms` milliseconds per second for `span_s`."""
    rng = random.Random(seed)
    chosen = []
    at_s = 0.0
    source = WORKLOADS[name](rng)
    while at_s < span_s:
        group = source(at_s)
        chosen += group
        at_s += rng.expovariate(1.0) * sum(work_ms(a) for a in group) / rate_ms
    # Turns of one conversation come among those of others.
    return sorted((a for a in chosen if a.at_s < span_s), key=lambda a: a.at_s)


def _single(
    rng: random.Random, at_s: float, prompt: tuple[int, int], answer: tuple[int, int]
) -> Arrival:
    num_tokens, num_output = rng.randint(*prompt), rng.randint(*answer)
    num_blocks = (num_tokens + num_output) // BLOCK_SIZE
    own = rng.getrandbits(64)
    return Arrival(at_s, num_tokens, num_output, tuple(_hash(own, i) for i in range(num_blocks)))


def _hash(own: int, number: int) -> bytes:
    return own.to_bytes(8, "little") + number.to_bytes(4, "little")


def _long_short(rng: random.Random) -> Callable[[float], list[Arrival]]:
    return lambda at_s: [_single(rng, at_s, (2000, 6000), (16, 64))]


def _short_long(rng: random.Random) -> Callable[[float], list[Arrival]]:
    return lambda at_s: [_single(rng, at_s, (64, 512), (150, 500))]


def _bursts(rng: random.Random) -> Callable[[float], list[Arrival]]:
    return lambda at_s: [_single(rng, at_s, (256, 2048), (64, 256)) for _ in range(8)]


def _shift(rng: random.Random) -> Callable[[float], list[Arrival]]:
    kinds = (_long_short(rng), _short_long(rng))
    return lambda at_s: kinds[int(at_s / PERIOD_S) % 2](at_s)


def _chat(rng: random.Random) -> Callable[[float], list[Arrival]]:
    """Conversations. A turn's prompt is the last one with its answer and some more."""

    def talk(at_s: float) -> list[Arrival]:
        turns: list[Arrival] = []
        own, num_tokens = rng.getrandbits(64), 0
        for _ in range(rng.randint(1, 6)):
            num_tokens += rng.randint(200, 1000) if not turns else rng.randint(30, 200)
            num_output = rng.randint(80, 300)
            num_blocks = (num_tokens + num_output) // BLOCK_SIZE
            hashes = tuple(_hash(own, i) for i in range(num_blocks))
            turns.append(Arrival(at_s, num_tokens, num_output, hashes))
            num_tokens += num_output
            at_s += rng.uniform(8, 20)
        return turns

    return talk


WORKLOADS: dict[str, Callable[[random.Random], Callable[[float], list[Arrival]]]] = {
    "chat": _chat,
    "long-short": _long_short,
    "short-long": _short_long,
    "bursts": _bursts,
    "shift": _shift,
}
