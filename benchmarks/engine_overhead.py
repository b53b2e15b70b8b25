"""What the engine itself costs per step: a model that computes nothing, on the CPU.

`python -m benchmarks.engine_overhead` prints microseconds per decode step, in the caller's thread
with its parts, and end to end through `EngineThread` with one reader per sequence.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from shared.engine.config import EngineConfig
from shared.engine.engine import Engine
from shared.engine.engine_thread import EngineThread
from shared.engine.sequence.request import EngineRequest
from shared.model.rope import RopeConfig
from shared.model.spec import AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, NormSpec
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.model.attention.base import AttentionMetadata

VOCAB_SIZE, PROMPT_LEN, NUM_STEPS = 1024, 32, 300
#: Of a step, in the order of the table.
PARTS = ("schedule", "plan", "build batch", "sample", "postprocess")


def make_spec() -> DecoderSpec:
    """The smallest KV that there can be."""
    rope = RopeConfig(
        rope_type="default",
        theta=1e4,
        head_dim=2,
        rotary_dim=2,
        original_max_positions=4096,
        max_positions=4096,
    )
    mixer = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, rope=rope)
    return DecoderSpec(
        architecture="none",
        vocab_size=VOCAB_SIZE,
        hidden_size=1,
        layers=(LayerSpec(mixer=mixer, feed_forward=FeedForwardSpec(inner_size=1)),),
        norm=NormSpec(eps=1e-6),
        max_position_embeddings=4096,
        num_positions=4096,
    )


class NoModel:
    """The same logits whatever comes."""

    def __init__(self) -> None:
        self._hidden = torch.zeros(4096, 1)
        self._logits = torch.rand(256, VOCAB_SIZE)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Nothing."""
        return self._hidden[: len(token_ids if metadata.wanted is None else metadata.wanted)]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, VOCAB_SIZE]"""
        return self._logits[: len(hidden)]


@dataclass
class NoLoadedModel:
    """Stands for a `LoadedModel`."""

    model: NoModel = field(default_factory=NoModel)
    spec: DecoderSpec = field(default_factory=make_spec)
    dtype: torch.dtype = torch.float32
    fingerprint: str = "none"
    num_weight_bytes: int = 0


def make_engine(num_seqs: int, *, overlap: bool) -> Engine:
    """Room for all of them."""
    config = EngineConfig(
        num_blocks=4096,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=4096,
        async_scheduling=overlap,
    )
    return Engine(NoLoadedModel(), config)  # type: ignore[arg-type]  # as much as the engine asks of it


def make_request(index: int, max_tokens: int) -> EngineRequest:
    """A greedy request."""
    return EngineRequest(
        request_id=str(index),
        prompt_token_ids=tuple(range(index, index + PROMPT_LEN)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
    )


def in_thread(num_seqs: int, *, overlap: bool) -> dict[str, float]:
    """Microseconds per step, total and by part."""
    engine = make_engine(num_seqs, overlap=overlap)
    for index in range(num_seqs):
        engine.add(make_request(index, NUM_STEPS + 60))
    for _ in range(30):
        engine.step()
    spent: Counter[str] = Counter()
    runner = engine._parts.runner
    _time(engine._scheduler, "schedule", "schedule", spent)
    _time(engine._steps._planner, "plan", "plan", spent)
    _time(runner._batches, "_build", "build batch", spent)
    _time(runner, "_choose", "sample", spent)
    _time(engine._postprocessor, "apply", "postprocess", spent)
    gc.disable()
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        engine.step()
    total = time.perf_counter() - start
    gc.enable()
    engine.close()
    return {name: s / NUM_STEPS * 1e6 for name, s in {"total": total, **spent}.items()}


def _time(owner: Any, method: str, name: str, spent: Counter[str]) -> None:
    inner = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start  # type: ignore[assignment]  # counts begin as integers

    setattr(owner, method, timed)


async def through_thread(num_seqs: int) -> float:
    """Microseconds per step with one reader per sequence on an event loop."""
    engine = make_engine(num_seqs, overlap=False)
    thread = EngineThread(engine)
    await thread.start()

    async def read(index: int) -> None:
        async for _ in await thread.submit(make_request(index, NUM_STEPS)):
            pass

    start = time.perf_counter()
    await asyncio.gather(*(read(index) for index in range(num_seqs)))
    total = time.perf_counter() - start
    await thread.stop()
    engine.close()
    return total / NUM_STEPS * 1e6


def main() -> None:
    """Print one table."""
    torch.set_num_threads(1)
    table = Table("sequences", "", "total", *PARTS, title="µs per decode step, a model of no cost")
    for num_seqs in (1, 16, 64):
        for overlap in (False, True):
            # The first round warms up.
            spent = [in_thread(num_seqs, overlap=overlap) for _ in range(2)][1]
            how = "overlapped" if overlap else "synchronous"
            table.add_row(str(num_seqs), how, *(f"{spent[part]:.0f}" for part in ("total", *PARTS)))
        through = min(asyncio.run(through_thread(num_seqs)) for _ in range(3))
        table.add_row(str(num_seqs), "EngineThread, with readers", f"{through:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
