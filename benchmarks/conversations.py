"""How much of what could be reused is reused by a cluster: `python -m benchmarks.conversations`.

A router, prefill and decode workers as processes. First conversations whose turns each begin with
all of the ones before, several conversations at a time; then prompts that share a long prefix.
Reusable are the full blocks of a prompt that are also the beginning of an earlier prompt and its
answer; reused is what `usage` says. The answers of a conversation are part of its next prompt.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from benchmarks.peers.models import FIRST_WORD, MODELS, model_folder
from cli.cluster import Cluster, ClusterSpec
from cli.start.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SIZE = 16
TIMEOUT_S = 120.0
NUM_OUTPUT = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and what it cost."""

    token_ids: tuple[int, ...]
    ttft_ms: float
    cached_tokens: int
    fetched_tokens: int


@dataclass(slots=True)
class Tally:
    """Of several requests."""

    reusable_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0

    def add(self, answer: Answer, num_reusable: int) -> None:
        """Add an answer's tokens to the sums."""
        self.reusable_tokens += num_reusable
        # No system reuses more than the whole blocks that were there.
        self.cached_tokens += min(answer.cached_tokens, num_reusable)
        self.fetched_tokens += answer.fetched_tokens

    @property
    def share(self) -> float:
        """Of the reusable tokens, those that were reused."""
        return self.cached_tokens / max(1, self.reusable_tokens)


class Client:
    """Asks the router with token ids."""

    def __init__(self, stub: router_pb2_grpc.RouterAsyncStub, vocab_size: int) -> None:
        self._stub = stub
        self._rng = random.Random(1)
        self._vocab_size = vocab_size

    def words(self, count: int) -> list[int]:
        """Random tokens."""
        return [self._rng.randrange(FIRST_WORD, self._vocab_size) for _ in range(count)]

    async def ask(self, prompt: Sequence[int]) -> Answer:
        """Ask, and wait for the whole answer."""
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
            params=router_pb2.GenerationParams(
                max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True
            ),
        )
        sent_s, first_s = time.perf_counter(), 0.0
        tokens: list[int] = []
        usage = common_pb2.Usage()
        async for piece in self._stub.Generate(request, timeout=TIMEOUT_S):
            first_s = first_s or time.perf_counter()
            tokens += piece.token_ids
            if piece.HasField("usage"):
                usage = piece.usage
        return Answer(
            token_ids=tuple(tokens),
            ttft_ms=(first_s - sent_s) * 1e3,
            cached_tokens=usage.cached_tokens,
            fetched_tokens=usage.sources.fetched,
        )


async def converse(client: Client, num_turns: int, num_words: int, tally: Tally) -> list[float]:
    """One conversation; returns the milliseconds to the first token of each turn."""
    history: list[int] = []
    ttfts_ms = []
    for _ in range(num_turns):
        prompt = history + client.words(num_words)
        answer = await client.ask(prompt)
        # The answer's last token was sampled and never computed.
        tally.add(answer, max(0, len(history) - 1) // BLOCK_SIZE * BLOCK_SIZE)
        ttfts_ms.append(answer.ttft_ms)
        history = [*prompt, *answer.token_ids]
        # Workers report what they hold in the background.
        await asyncio.sleep(0.2)
    return ttfts_ms


async def share_prefix(
    client: Client, num_prompts: int, num_shared: int, tally: Tally
) -> tuple[float, list[float]]:
    """Prompts with one beginning, one after the other; the first one's time, and the others'."""
    shared = client.words(num_shared)
    ttfts_ms = []
    for number in range(num_prompts):
        answer = await client.ask(shared + client.words(BLOCK_SIZE))
        tally.add(answer, num_shared // BLOCK_SIZE * BLOCK_SIZE if number else 0)
        ttfts_ms.append(answer.ttft_ms)
        await asyncio.sleep(0.2)
    return ttfts_ms[0], ttfts_ms[1:]


async def measure(address: str, vocab_size: int, *, conversations: int, turns: int) -> Table:
    """Both workloads on a cluster that is ready."""
    table = Table("workload", "reusable tokens", "reused", "of it fetched", "TTFT ms")
    async with grpc.aio.insecure_channel(address) as channel:
        client = Client(router_pb2_grpc.RouterStub(channel), vocab_size)
        await asyncio.gather(*(client.ask(client.words(64)) for _ in range(4)))
        tally = Tally()
        rows = await asyncio.gather(
            *(converse(client, turns, 160, tally) for _ in range(conversations))
        )
        first = statistics.median(row[0] for row in rows)
        last = statistics.median(row[-1] for row in rows)
        table.add_row(
            f"{conversations} conversations of {turns} turns",
            *_shares(tally),
            f"turn 1: {first:.0f}, turn {turns}: {last:.0f}",
        )
        tally, colds_ms, warms_ms = Tally(), [], []
        for _ in range(3):
            cold_ms, warm_ms = await share_prefix(client, 6, 2048, tally)
            colds_ms.append(cold_ms)
            warms_ms += warm_ms
        cold, warm = statistics.median(colds_ms), statistics.median(warms_ms)
        table.add_row(
            "3 × 6 prompts that share 2048 tokens",
            *_shares(tally),
            f"cold {cold:.0f}, warm {warm:.0f}: {warm / cold:.2f} ×",
        )
    return table


def _shares(tally: Tally) -> tuple[str, str, str]:
    fetched = tally.fetched_tokens / max(1, tally.cached_tokens)
    return str(tally.reusable_tokens), f"{tally.share:.1%}", f"{fetched:.1%}"


def main(
    model: Annotated[str, typer.Option(help="small or medium.")] = "small",
    prefill: Annotated[int, typer.Option(help="Prefill workers.")] = 2,
    decode: Annotated[int, typer.Option(help="Decode workers.")] = 1,
    conversations: Annotated[int, typer.Option(help="At the same time.")] = 6,
    turns: Annotated[int, typer.Option(help="Of each conversation.")] = 8,
    redis_url: Annotated[str | None, typer.Option(help="Directory; by default embedded.")] = None,
) -> None:
    """Measure a cluster that is started for it."""
    with tempfile.TemporaryDirectory(prefix="baton-conversations-") as folder:
        spec = ClusterSpec(
            model=model_folder(model),
            served_model_name=model,
            log_folder=Path(folder),
            port=free_port(),
            grpc_port=free_port(),
            num_prefill=prefill,
            num_decode=decode,
            redis_url=redis_url,
            worker_flags=("--kv-cache-memory-bytes", str(1 << 30), "--max-model-len", "4096"),
        )
        with Cluster(spec) as cluster:
            cluster.start()
            cluster.wait_ready(lambda _: None)
            table = asyncio.run(
                measure(
                    spec.directory,
                    MODELS[model].vocab_size,
                    conversations=conversations,
                    turns=turns,
                )
            )
    table.title = f"{model}: {prefill} prefill, {decode} decode"
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
