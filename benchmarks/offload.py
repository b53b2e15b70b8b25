"""What lower tiers bring: conversations that need four times the KV pool, and LRU against ARC.

`python -m benchmarks.offload` runs a model of random weights in this process, the conversations
taking turns, one request at a time; then the managers alone on a trace polluted by scans, which is
the same on every machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.models import FIRST_WORD, model_folder
from shared.engine.config import EngineConfig
from shared.engine.engine import Engine
from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.kv.offload.manager import BlockOffloadManager, OffloadPolicy
from shared.kv.tier import BlockTier
from shared.model.loader import load_model
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from shared.model.loader import LoadedModel

NUM_CONVERSATIONS, NUM_TURNS = 16, 4
#: Tokens of the first prompt, of what each turn adds, and of each answer.
FIRST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 256, 120, 8
BLOCK_SIZE = 16
WORKING_SET = NUM_CONVERSATIONS * (
    (FIRST_TOKENS + (NUM_TURNS - 1) * TURN_TOKENS + NUM_TURNS * ANSWER_TOKENS) // BLOCK_SIZE
)
POOL_BLOCKS = WORKING_SET // 4
#: The host tier holds as much as the pool in one row, and everything in another.
SMALL_HOST = POOL_BLOCKS
GIB = 1 << 30


@dataclass
class Measured:
    """One run of all conversations."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    #: Of first turns, and of all others.
    first_ttft_ms: list[float] = field(default_factory=list)
    later_ttft_ms: list[float] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    tiers: dict[BlockTier, Any] = field(default_factory=dict)


def converse(loaded: LoadedModel, **tiers: Any) -> Measured:
    """All conversations, turn by turn, each waiting for the answers of its turn before."""
    engine = Engine(loaded, EngineConfig(num_blocks=POOL_BLOCKS, block_size=BLOCK_SIZE, **tiers))
    measured = Measured()
    words = random.Random(1)
    try:
        prompts = [_words(words, FIRST_TOKENS) for _ in range(NUM_CONVERSATIONS)]
        for turn in range(NUM_TURNS):
            for number, prompt in enumerate(prompts):
                answer, ttft_ms = _ask(engine, f"{turn}-{number}", prompt, measured)
                times = measured.later_ttft_ms if turn else measured.first_ttft_ms
                times.append(ttft_ms)
                measured.answers.append(answer)
                prompt += [*answer, *_words(words, TURN_TOKENS)]
        measured.tiers = dict(engine.stats().tiers)
    finally:
        engine.close()
    return measured


def _words(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(FIRST_WORD, 32000) for _ in range(num)]


def _ask(
    engine: Engine, name: str, prompt: list[int], measured: Measured
) -> tuple[list[int], float]:
    sampling = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    answer: list[int] = []
    ttft_ms = 0.0
    start_s = time.perf_counter()
    engine.add(EngineRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling))
    while engine.has_work() or engine.wait_for_news():
        for event in engine.step():
            if isinstance(event, Admitted):
                measured.num_prompt_tokens += len(prompt)
                measured.num_cached_tokens += event.num_cached_tokens
            elif isinstance(event, NewTokens):
                ttft_ms = ttft_ms or (time.perf_counter() - start_s) * 1e3
                answer += event.token_ids
    return answer, ttft_ms


def conversations(model: str, console: Console) -> None:
    """Without tiers, with host memory, with a little of it and a disk; prints a table."""
    loaded = load_model(model_folder(model))
    layout = Engine(loaded, EngineConfig(num_blocks=512, block_size=BLOCK_SIZE))
    block_gib = layout.layout.block_bytes / GIB
    layout.close()
    with tempfile.TemporaryDirectory() as folder:
        small = {"kv_offload_host_gib": (SMALL_HOST + 0.5) * block_gib}
        disk = {"kv_offload_disk_dir": Path(folder), "kv_offload_disk_gib": 4.0}
        runs: dict[str, dict[str, Any]] = {
            "none": {},
            f"host, {2 * WORKING_SET} blocks": {"kv_offload_host_gib": 2 * WORKING_SET * block_gib},
            f"host, {SMALL_HOST} blocks": small,
            f"host, {SMALL_HOST} blocks, and disk": small | disk,
            "the same after a restart": small | disk,
        }
        table = Table(title=f"{model}: {NUM_CONVERSATIONS} conversations of {NUM_TURNS} turns, "
                      f"{WORKING_SET} blocks, pool of {POOL_BLOCKS}")  # fmt: skip
        for column in ("tiers", "reused %", "first turn ms", "later turns ms, mean", "p50", "p90",
                       "host / disk hits", "ms per block loaded", "answers"):  # fmt: skip
            table.add_column(column, justify="right")
        expected: list[list[int]] = []
        for name, settings in runs.items():
            measured = converse(loaded, **settings)
            expected = expected or measured.answers
            table.add_row(
                name, *_row(measured), "equal" if measured.answers == expected else "OTHERS"
            )
    console.print(table)


def _row(measured: Measured) -> list[str]:
    later = measured.later_ttft_ms
    counters = {tier: stats.counters for tier, stats in measured.tiers.items()}
    hits = [f"{counters[tier]['hits']:.0f}" for tier in counters]
    cost = [f"{1e3 * c['load_seconds'] / c['loads']:.2f}" for c in counters.values() if c["loads"]]
    return [
        f"{100 * measured.num_cached_tokens / measured.num_prompt_tokens:.0f}",
        f"{statistics.mean(measured.first_ttft_ms):.0f}",
        f"{statistics.mean(later):.0f}",
        f"{statistics.median(later):.0f}",
        f"{statistics.quantiles(later, n=10)[-1]:.0f}",
        " / ".join(hits),
        " / ".join(cost),
    ]


def scan_trace(*, num_requests: int, scan_share: float) -> list[tuple[bool, list[bytes]]]:
    """Requests as (is a scan, keys): popular prefixes of 8 blocks, and documents read once."""
    rng = random.Random(7)
    popular = [[f"p{n}-{i}".encode() for i in range(8)] for n in range(96)]
    weights = [1 / (n + 1) for n in range(len(popular))]
    trace = []
    for number in range(num_requests):
        if rng.random() < scan_share:
            trace.append((True, [f"s{number}-{i}".encode() for i in range(64)]))
        else:
            trace.append((False, rng.choices(popular, weights)[0]))
    return trace


def hit_share(trace: list[tuple[bool, list[bytes]]], policy: OffloadPolicy, capacity: int) -> float:
    """Of the blocks that are not a scan's, how many were found."""
    manager = BlockOffloadManager(capacity, tier=BlockTier.HOST, policy=policy)
    num_hits = num_wanted = 0
    for is_scan, keys in trace:
        num = manager.lookup(keys)
        if not is_scan:
            num_hits, num_wanted = num_hits + num, num_wanted + len(keys)
        manager.touch(keys[::-1])
        plan = manager.prepare_store(keys)
        if plan is not None:
            manager.complete_store(plan.keys, success=True)
        manager.changes.take()
    return num_hits / num_wanted


def policies(console: Console) -> None:
    """LRU against ARC; prints a table."""
    table = Table(title="hits among 96 prefixes of 8 blocks (Zipf), 20,000 requests, in %")
    for column in ("capacity", "scans", "LRU", "ARC"):
        table.add_column(column, justify="right")
    for capacity in (256, 512):
        for scan_share in (0.0, 0.05, 0.2):
            trace = scan_trace(num_requests=20_000, scan_share=scan_share)
            shares = [hit_share(trace, policy, capacity) for policy in OffloadPolicy]
            row = (f"{100 * share:.1f}" for share in shares)
            table.add_row(str(capacity), f"{100 * scan_share:.0f} %", *row)
    console.print(table)


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description="Measure the KV tiers below the pool.")
    parser.add_argument("--model", default="small", help="small or medium")
    parser.add_argument("--part", choices=("engine", "policies", "all"), default="all")
    options = parser.parse_args()
    console = Console(width=150)
    if options.part in ("policies", "all"):
        policies(console)
    if options.part in ("engine", "all"):
        conversations(options.model, console)


if __name__ == "__main__":
    main()
