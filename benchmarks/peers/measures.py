"""What is measured of an engine, and what each result is called."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.peers.models import FIRST_WORD, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers.workers.wire import Many, Single, Vectors

#: The longest single measurement that is waited for.
TIMEOUT_S = 900.0
NUM_OUTPUT = 128


class Answers(Protocol):
    """An engine, as the measures see it."""

    def one(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
        *,
        timeout_s: float,
    ) -> Single:
        """See `AdapterEngine.one`."""

    def many(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
        *,
        timeout_s: float,
    ) -> Many:
        """See `AdapterEngine.many`."""


class Embedder(Protocol):
    """What makes vectors, as the measures see it."""

    def embed(self, texts: Sequence[Sequence[int]], *, timeout_s: float) -> Vectors:
        """See `OfflineEmbedder.embed`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table."""

    title: str
    unit: str
    higher_is_better: bool


METRICS = {
    "ttft_1024_ms": Metric("time to first token, 1024-token prompt", "ms", False),
    "decode_b1_ctx32": Metric("decode, batch 1, context 32", "tok/s", True),
    "decode_b1_ctx1024": Metric("decode, batch 1, context 1024", "tok/s", True),
    "ttft_4096_ms": Metric("time to first token, 4096-token prompt", "ms", False),
    "decode_b1_ctx4096": Metric("decode, batch 1, context 4096", "tok/s", True),
    "ttft_16384_ms": Metric("time to first token, 16384-token prompt", "ms", False),
    "decode_b1_ctx16384": Metric("decode, batch 1, context 16384", "tok/s", True),
    "batch8_1024_decode": Metric("8 requests 1024 → 128, once all decode", "tok/s", True),
    "batch8_4096_decode": Metric("8 requests 4096 → 128, once all decode", "tok/s", True),
    "batch8": Metric("8 requests 256 → 128, output", "tok/s", True),
    "batch16": Metric("16 requests 256 → 128, output", "tok/s", True),
    "batch32": Metric("32 requests 256 → 128, output", "tok/s", True),
    "batch8_decode": Metric("of these, once all decode, 8 requests of 256", "tok/s", True),
    "batch16_decode": Metric("of these, once all decode, 16 requests", "tok/s", True),
    "batch32_decode": Metric("of these, once all decode, 32 requests", "tok/s", True),
    "batch8_adapters": Metric("8 requests 256 → 128 on 4 adapters, output", "tok/s", True),
    "batch8_adapters_decode": Metric("of these, once all decode, on 4 adapters", "tok/s", True),
    "decode_b1_adapter": Metric("decode, batch 1, context 32, on an adapter", "tok/s", True),
    "embed32x512": Metric("vectors of 32 texts of 512 tokens", "tok/s", True),
    "embed64x64": Metric("vectors of 64 texts of 64 tokens", "tok/s", True),
    "embed1x64_ms": Metric("vector of a text of 64 tokens", "ms", False),
    "prefill16_ms": Metric("16 × 1088-token prompts, 1 token", "ms", False),
    "prefix_cold_ms": Metric("16 prompts sharing 1024 tokens, cold", "ms", False),
    "prefix_warm_ms": Metric("16 prompts sharing 1024 tokens, warm", "ms", False),
}


class Prompts:
    """Random prompts, never the same twice: nothing may come from a prefix cache by chance."""

    def __init__(self, seed: int, *, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size

    def draw(self, num_tokens: int) -> list[int]:
        """Return random token ids of ordinary words."""
        return [self._random.randrange(FIRST_WORD, self._vocab_size) for _ in range(num_tokens)]

    def draw_many(self, num: int, num_tokens: int) -> list[list[int]]:
        """Return `num` independent prompts."""
        return [self.draw(num_tokens) for _ in range(num)]


@dataclass(frozen=True, slots=True)
class Measure:
    """One visit to an engine, which gives one or more results."""

    name: str
    metrics: tuple[str, ...]
    #: Given an engine or a server, see `contestants`.
    run: Callable[[Any, Prompts], Iterator[tuple[str, float]]]
    needs_prefix_sharing: bool = False


def _single(num: int) -> Callable[[Answers, Prompts], Iterator[tuple[str, float]]]:
    def run(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
        times_s = engine.one(prompts.draw(num), NUM_OUTPUT + 1, timeout_s=TIMEOUT_S).times_s
        yield f"ttft_{num}_ms", times_s[0] * 1e3
        yield f"decode_b1_ctx{num}", decode_rate(times_s)

    return run


def _short(
    metric: str, *adapters: int
) -> Callable[[Answers, Prompts], Iterator[tuple[str, float]]]:
    def run(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
        prompt = prompts.draw(32)
        times_s = engine.one(prompt, NUM_OUTPUT + 1, adapters, timeout_s=TIMEOUT_S).times_s
        yield metric, decode_rate(times_s)

    return run


def _batch(
    metric: str, num: int, *adapters: int
) -> Callable[[Answers, Prompts], Iterator[tuple[str, float]]]:
    def run(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
        many = engine.many(prompts.draw_many(num, 256), NUM_OUTPUT, adapters, timeout_s=TIMEOUT_S)
        yield metric, many.num_tokens / many.elapsed_s
        decoded = many.num_tokens - many.num_by_then
        yield f"{metric}_decode", decoded / (many.elapsed_s - many.prefilled_s)

    return run


def _vectors(
    metric: str, num: int, length: int
) -> Callable[[Embedder, Prompts], Iterator[tuple[str, float]]]:
    def run(engine: Embedder, prompts: Prompts) -> Iterator[tuple[str, float]]:
        elapsed_s = engine.embed(prompts.draw_many(num, length), timeout_s=TIMEOUT_S).elapsed_s
        yield metric, elapsed_s * 1e3 if metric.endswith("_ms") else num * length / elapsed_s

    return run


def _eight(num: int) -> Callable[[Answers, Prompts], Iterator[tuple[str, float]]]:
    def run(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
        many = engine.many(prompts.draw_many(8, num), NUM_OUTPUT, timeout_s=TIMEOUT_S)
        decoded = many.num_tokens - many.num_by_then
        yield f"batch8_{num}_decode", decoded / (many.elapsed_s - many.prefilled_s)

    return run


def _prefill(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
    many = engine.many(prompts.draw_many(16, 1088), 1, timeout_s=TIMEOUT_S)
    yield "prefill16_ms", many.elapsed_s * 1e3


def _prefix(engine: Answers, prompts: Prompts) -> Iterator[tuple[str, float]]:
    shared = prompts.draw(1024)
    for name in ("prefix_cold_ms", "prefix_warm_ms"):
        batch = [shared + own for own in prompts.draw_many(16, 64)]
        yield name, engine.many(batch, 1, timeout_s=TIMEOUT_S).elapsed_s * 1e3


MEASURES = (
    Measure("single-1024", ("ttft_1024_ms", "decode_b1_ctx1024"), _single(1024)),
    Measure("single-32", ("decode_b1_ctx32",), _short("decode_b1_ctx32")),
    Measure("batch-8", ("batch8", "batch8_decode"), _batch("batch8", 8)),
    Measure("batch-16", ("batch16", "batch16_decode"), _batch("batch16", 16)),
    Measure("batch-32", ("batch32", "batch32_decode"), _batch("batch32", 32)),
    Measure("prefill-16", ("prefill16_ms",), _prefill),
    Measure("prefix", ("prefix_cold_ms", "prefix_warm_ms"), _prefix, needs_prefix_sharing=True),
)
#: For models that are started for long sequences.
LONG_MEASURES = (
    Measure("single-4096", ("ttft_4096_ms", "decode_b1_ctx4096"), _single(4096)),
    Measure("single-16384", ("ttft_16384_ms", "decode_b1_ctx16384"), _single(16384)),
    Measure("batch-8-4096", ("batch8_4096_decode",), _eight(4096)),
)
#: For models that are started with adapters: their own speed, and that of `NUM_ADAPTERS` of them.
NUM_ADAPTERS = 4
ADAPTER_MEASURES = (
    *(measure for measure in MEASURES if measure.name in ("single-32", "batch-8")),
    Measure("single-32-adapter", ("decode_b1_adapter",), _short("decode_b1_adapter", 0)),
    Measure(
        "batch-8-adapters",
        ("batch8_adapters", "batch8_adapters_decode"),
        _batch("batch8_adapters", 8, *(place % NUM_ADAPTERS for place in range(8))),
    ),
)
#: For models that make vectors.
VECTOR_MEASURES = (
    Measure("embed-32x512", ("embed32x512",), _vectors("embed32x512", 32, 512)),
    Measure("embed-64x64", ("embed64x64",), _vectors("embed64x64", 64, 64)),
    Measure("embed-1x64", ("embed1x64_ms",), _vectors("embed1x64_ms", 1, 64)),
)
#: For models in few bits.
NARROW_MEASURES = (
    *(measure for measure in MEASURES if measure.name in ("single-32", "single-1024", "batch-16")),
    LONG_MEASURES[0],
    Measure("batch-8-1024", ("batch8_1024_decode",), _eight(1024)),
)


def decode_rate(times_s: Sequence[float]) -> float:
    """Tokens per second after the first one."""
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


#: Prompts whose first tokens are compared between engines: do they run the same model?
NUM_PROBES = 8


def probe(engine: Answers, prompts: Prompts) -> list[int]:
    """First tokens of answers to fixed prompts."""
    return [
        engine.one(prompts.draw(48), 1, timeout_s=TIMEOUT_S).token_ids[0] for _ in range(NUM_PROBES)
    ]


def warm_up(engine: Answers, prompts: Prompts) -> None:
    """Every shape once, so that no compilation and no first allocation is measured."""
    engine.one(prompts.draw(1024), 4, timeout_s=TIMEOUT_S)
    engine.one(prompts.draw(32), 4, timeout_s=TIMEOUT_S)
    engine.many(prompts.draw_many(32, 64), 4, timeout_s=TIMEOUT_S)


def wake(engine: Answers, prompts: Prompts) -> None:
    """A little work after a pause: threads run again, weights are in the caches as in service."""
    engine.one(prompts.draw(64), 4, timeout_s=TIMEOUT_S)


def prompts_for(model: str, seed: int) -> Prompts:
    """Prompts in the model's vocabulary."""
    return Prompts(seed, vocab_size=spec_of(model).vocab_size)
