"""What TLS and CURVE cost a request: two clusters side by side, asked in turn.

    python -m benchmarks.transport --num-requests 30

Both have a router, a prefill and a decode worker, and blocks go by TCP. Only one works at a time.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.v1 import common_pb2, router_pb2, router_pb2_grpc
from benchmarks.peers.models import model_folder
from cli.access import Secure
from cli.certs import make_certificates
from cli.cluster import Cluster, ClusterSpec
from cli.start.ports import free_port

app = typer.Typer(add_completion=False)
PLAIN, SECURE = "plain", "TLS and CURVE"


@dataclass
class Times:
    """Of the requests that count, in milliseconds."""

    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)


async def ask(
    stub: router_pb2_grpc.RouterAsyncStub, prompt: list[int], output_len: int, times: Times
) -> None:
    """One request, and when its tokens came."""
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(max_tokens=output_len, temperature=0.0, ignore_eos=True),
    )
    started = time.perf_counter()
    answer = stub.Generate(request, timeout=600)
    stamps = [time.perf_counter() async for piece in answer if piece.token_ids]
    times.ttft_ms.append((stamps[0] - started) * 1e3)
    times.total_ms.append((stamps[-1] - started) * 1e3)
    times.itl_ms += [(after - before) * 1e3 for before, after in pairwise(stamps)]


def start(model: Path, folder: Path, stack: AsyncExitStack, *, secure: bool) -> grpc.aio.Channel:
    """A cluster that runs until the stack closes, and a client's channel to it."""
    folder.mkdir()
    certificates = make_certificates(folder / "certs") if secure else None
    spec = ClusterSpec(
        model=model,
        served_model_name="bench",
        log_folder=folder,
        port=free_port(),
        grpc_port=free_port(),
        worker_flags=("--num-blocks", "1024", "--connectors", "zmq"),
        certificates=certificates,
    )
    cluster = stack.enter_context(Cluster(spec))
    cluster.start()
    cluster.wait_ready(lambda _: None)
    if certificates is None:
        return grpc.aio.insecure_channel(spec.directory)
    return grpc.aio.secure_channel(spec.directory, Secure(certificates.ca).credentials())


async def measure(
    model: Path, *, input_len: int, output_len: int, num_requests: int
) -> dict[str, Times]:
    """The same prompts for both, in turn; the first two of each warm up."""
    rng = random.Random(0)
    results = {PLAIN: Times(), SECURE: Times()}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stubs = {}
        for name in results:
            channel = start(model, folder / name[:3], stack, secure=name == SECURE)
            stack.push_async_callback(channel.close)
            stubs[name] = router_pb2_grpc.RouterStub(channel)
        for number in range(num_requests + 2):
            prompt = [rng.randrange(3, 300) for _ in range(input_len)]
            for name, stub in stubs.items():
                await ask(stub, prompt, output_len, results[name] if number >= 2 else Times())
    return results


@app.command()
def main(
    model: Annotated[str, typer.Option(help="A model of benchmarks/peers.")] = "small",
    input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 512,
    output_len: Annotated[int, typer.Option(help="Tokens of an answer.")] = 32,
    num_requests: Annotated[int, typer.Option(help="That count.")] = 20,
) -> None:
    """Measure TTFT and ITL with and without encryption."""
    results = asyncio.run(
        measure(
            model_folder(model),
            input_len=input_len,
            output_len=output_len,
            num_requests=num_requests,
        )
    )
    title = f"{model}: {num_requests} requests of {input_len} + {output_len} tokens, one at a time"
    table = Table("", "TTFT p50, ms", "ITL p50, ms", "ITL p99, ms", "request p50, ms", title=title)
    for name, times in results.items():
        values = (
            statistics.median(times.ttft_ms),
            statistics.median(times.itl_ms),
            statistics.quantiles(times.itl_ms, n=100)[98],
            statistics.median(times.total_ms),
        )
        table.add_row(name, *(f"{value:.2f}" for value in values))
    Console(width=110).print(table)


if __name__ == "__main__":
    app()
