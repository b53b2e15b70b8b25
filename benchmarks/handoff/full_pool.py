"""`python -m benchmarks.handoff.full_pool`: a decode worker without room, with and without landing.

A prefill and a decode process. The decode worker's pool holds two sequences; prompts come faster
than answers end.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from benchmarks.handoff.systems import bench_spec
from cli.cluster import Cluster
from shared.model.checkpoint.config import load_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.cluster import ClusterSpec

DEFAULT_MODEL = Path("models/pydoc/checkpoint")
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer on the client's clock, and what its prompt took."""

    ttft_s: float
    end_s: float
    prefill_s: float
    place: str
    token_ids: tuple[int, ...]


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint to serve.")] = DEFAULT_MODEL,
    num_requests: Annotated[int, typer.Option(help="Requests per pass, all at once.")] = 12,
    input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 512,
    output_len: Annotated[int, typer.Option(help="Output tokens.")] = 128,
    passes: Annotated[int, typer.Option(help="Passes of each, alternating.")] = 3,
) -> None:
    """Compare landing in host memory with waiting for the pool."""
    num_blocks = 2 * -(-(input_len + output_len) // BLOCK_SIZE) + 2
    seen: dict[bool, list[list[Seen]]] = {True: [], False: []}
    vocab_size = load_spec(model).vocab_size
    for number in range(2 * passes):
        lands = number % 2 == 0
        rng = random.Random(number // 2)
        prompts = [
            [rng.randrange(10, vocab_size) for _ in range(input_len)] for _ in range(num_requests)
        ]
        spec = _spec(model, num_blocks, lands=lands)
        with Cluster(spec) as cluster:
            cluster.start()
            cluster.wait_ready(lambda _: None)
            seen[lands].append(asyncio.run(_ask_all(spec.directory, prompts, output_len)))
    for one, other in zip(seen[True], seen[False], strict=True):
        if [each.token_ids for each in one] != [each.token_ids for each in other]:
            raise RuntimeError("landing has changed a token")
    Console(width=110).print(_table(seen))


def _spec(model: Path, num_blocks: int, *, lands: bool) -> ClusterSpec:
    tier = "--kv-offload-landing" if lands else "--no-kv-offload-landing"
    return replace(
        bench_spec(model, 512, "shm"),
        router_flags=("--max-worker-queue-ms", "600000"),
        decode_flags=("--num-blocks", str(num_blocks), "--kv-offload-host-gib", "0.5", tier),
    )


async def _ask_all(address: str, prompts: Sequence[Sequence[int]], output_len: int) -> list[Seen]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: router_pb2_grpc.RouterAsyncStub = router_pb2_grpc.RouterStub(channel)
        await _ask(stub, "warm", prompts[0][:64], 4)
        names = (f"r{number}" for number in range(len(prompts)))
        asked = zip(names, prompts, strict=True)
        return await asyncio.gather(*(_ask(stub, *each, output_len) for each in asked))


async def _ask(
    stub: router_pb2_grpc.RouterAsyncStub, name: str, prompt: Sequence[int], output_len: int
) -> Seen:
    request = router_pb2.GenerateRequest(
        request_id=name,
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(max_tokens=output_len, temperature=0.0, ignore_eos=True),
    )
    sent_s, first_s = time.monotonic(), 0.0
    tokens: list[int] = []
    timings = common_pb2.Timings()
    async for piece in stub.Generate(request, timeout=600):
        first_s = first_s or time.monotonic()
        tokens += piece.token_ids
        timings = piece.timings if piece.HasField("timings") else timings
    return Seen(
        ttft_s=first_s - sent_s,
        end_s=time.monotonic() - sent_s,
        prefill_s=timings.prefill_ms / 1e3,
        place=timings.prefill_place,
        token_ids=tuple(tokens),
    )


def _table(seen: dict[bool, list[list[Seen]]]) -> Table:
    table = Table(
        "landing",
        "TTFT p50 s",
        "TTFT max s",
        "all answers s",
        "prefill idle until the last",
        "places",
    )
    for lands, runs in seen.items():
        last = [max(one.ttft_s for one in run) for run in runs]
        idle = [
            1 - sum(one.prefill_s for one in run) / end for run, end in zip(runs, last, strict=True)
        ]
        places = sorted({one.place for run in runs for one in run})
        table.add_row(
            "on" if lands else "off",
            f"{median(median(one.ttft_s for one in run) for run in runs):.2f}",
            f"{median(last):.2f}",
            f"{median(max(one.end_s for one in run) for run in runs):.2f}",
            f"{median(idle):.0%}",
            ", ".join(places),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
