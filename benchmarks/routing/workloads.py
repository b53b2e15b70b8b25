"""Requests of some kinds, at random, and of Mooncake's traces, to compare places of prompts."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.routing.traces import BLOCK_SIZE as TRACE_BLOCK_SIZE
from benchmarks.routing.traces import NAMES, Arrival, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Source = Callable[[float], list[Arrival]]

BLOCK_SIZE = 64
#: Of a load that shifts from one kind to the other.
PERIOD_S = 60.0
#: The conversations' times are rounded to it; requests of one moment are spread over it.
TRACE_QUANTUM_S = {"conversation": 3.0, "synthetic": 0.0}


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors on a workload's sizes, for models that are slower than the one they are meant for."""

    prompt: float = 1.0
    answer: float = 1.0
    #: Between turns of a conversation, and of a shifting load's period.
    time: float = 1.0
    block_size: int = BLOCK_SIZE
    #: Prompts are cut so that they and their answers fit.
    max_tokens: int | None = None

    def prompt_tokens(self, num: int) -> int:
        """Of `num` before."""
        return max(1, round(num * self.prompt))

    def answer_tokens(self, num: int) -> int:
        """Of `num` before."""
        return max(1, round(num * self.answer))


def arrivals(
    name: str,
    *,
    rate_ms: float,
    span_s: float,
    work_ms: Callable[[Arrival], float],
    seed: int,
    scale: Scale | None = None,
) -> list[Arrival]:
    """Return requests whose work comes at `rate_ms` milliseconds per second for `span_s`.

    `name`: of WORKLOADS, or a trace's. The same arguments give the same requests.
    """
    rng, scale = random.Random(seed), scale or Scale()
    if name in NAMES:
        return _of_trace(name, rng, rate_ms * span_s, span_s, work_ms, scale)
    chosen = []
    at_s = 0.0
    source = WORKLOADS[name](rng, scale)
    while at_s < span_s:
        group = source(at_s)
        chosen += group
        at_s += rng.expovariate(1.0) * sum(work_ms(a) for a in group) / rate_ms
    # Turns of one conversation come among those of others.
    return sorted((a for a in chosen if a.at_s < span_s), key=lambda a: a.at_s)


_trace = functools.cache(read_trace)


def _of_trace(
    name: str,
    rng: random.Random,
    total_ms: float,
    span_s: float,
    work_ms: Callable[[Arrival], float],
    scale: Scale,
) -> list[Arrival]:
    """Requests in a row, from one at random on, as many as have that work; in the rhythm of the
    trace, but in `span_s`. Behind the last one of the trace comes the first.
    """
    trace = _trace(name)
    number, quantum_s = rng.randrange(len(trace)), TRACE_QUANTUM_S[name]
    found: list[Arrival] = []
    left_ms, round_s, begin_s = total_ms, 0.0, trace[number].at_s
    while left_ms > 0:
        row = _scaled(trace[number], scale)
        at_s = round_s + row.at_s - begin_s + rng.uniform(0.0, quantum_s)
        found.append(replace(row, at_s=at_s))
        left_ms -= work_ms(row)
        number += 1
        if number == len(trace):
            number, round_s = 0, round_s + trace[-1].at_s
    # The time of the request that would be next.
    end_s = max(max(a.at_s for a in found), round_s + trace[number].at_s - begin_s) + quantum_s
    factor = span_s / end_s if end_s else 0.0
    return sorted((replace(a, at_s=a.at_s * factor) for a in found), key=lambda a: a.at_s)


def _scaled(row: Arrival, scale: Scale) -> Arrival:
    """Every block of the trace becomes some of `scale.block_size`, or some become one."""
    num_output = scale.answer_tokens(row.num_output_tokens)
    num_tokens = scale.prompt_tokens(row.num_tokens)
    if scale.max_tokens is not None:
        num_output = min(num_output, scale.max_tokens // 2)
        num_tokens = min(num_tokens, scale.max_tokens - num_output)
    blocks, size = row.hashes, TRACE_BLOCK_SIZE * scale.prompt
    if size < scale.block_size:
        every = round(scale.block_size / size)
        blocks = blocks[every - 1 :: every]  # each stands for all before it, too
    num_parts = max(1, round(size / scale.block_size))
    hashes = tuple(block + i.to_bytes(2, "little") for block in blocks for i in range(num_parts))
    return replace(row, num_tokens=num_tokens, num_output_tokens=num_output, hashes=hashes)


def _single(
    rng: random.Random,
    scale: Scale,
    at_s: float,
    prompt: tuple[int, int],
    answer: tuple[int, int],
) -> Arrival:
    num_tokens = scale.prompt_tokens(rng.randint(*prompt))
    num_output = scale.answer_tokens(rng.randint(*answer))
    own = rng.getrandbits(64)
    return Arrival(at_s, num_tokens, num_output, _hashes(own, num_tokens + num_output, scale))


def _hashes(own: int, num_tokens: int, scale: Scale) -> tuple[bytes, ...]:
    return tuple(_hash(own, i) for i in range(num_tokens // scale.block_size))


def _hash(own: int, number: int) -> bytes:
    return own.to_bytes(8, "little") + number.to_bytes(4, "little")


def _long_short(rng: random.Random, scale: Scale) -> Source:
    return lambda at_s: [_single(rng, scale, at_s, (2000, 6000), (16, 64))]


def _short_long(rng: random.Random, scale: Scale) -> Source:
    return lambda at_s: [_single(rng, scale, at_s, (64, 512), (150, 500))]


def _bursts(rng: random.Random, scale: Scale) -> Source:
    return lambda at_s: [_single(rng, scale, at_s, (256, 2048), (64, 256)) for _ in range(8)]


def _shift(rng: random.Random, scale: Scale) -> Source:
    kinds = (_long_short(rng, scale), _short_long(rng, scale))
    period_s = PERIOD_S * scale.time
    return lambda at_s: kinds[int(at_s / period_s) % 2](at_s)


def _chat(rng: random.Random, scale: Scale) -> Source:
    """Conversations. A turn's prompt is the last one with its answer and some more."""

    def talk(at_s: float) -> list[Arrival]:
        turns: list[Arrival] = []
        own, num_tokens = rng.getrandbits(64), 0
        for _ in range(rng.randint(1, 6)):
            more = rng.randint(200, 1000) if not turns else rng.randint(30, 200)
            num_tokens += scale.prompt_tokens(more)
            num_output = scale.answer_tokens(rng.randint(80, 300))
            hashes = _hashes(own, num_tokens + num_output, scale)
            turns.append(Arrival(at_s, num_tokens, num_output, hashes))
            num_tokens += num_output
            at_s += rng.uniform(8, 20) * scale.time
        return turns

    return talk


WORKLOADS: dict[str, Callable[[random.Random, Scale], Source]] = {
    "chat": _chat,
    "long-short": _long_short,
    "short-long": _short_long,
    "bursts": _bursts,
    "shift": _shift,
}
#: What can be asked for by name.
ALL_WORKLOADS: Sequence[str] = (*WORKLOADS, *NAMES)
