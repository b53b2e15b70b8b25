"""From how many blocks on does fetching a prefix from a peer beat computing it?

Three workers as processes: one holds a prefix, one fetches it whatever it costs, one asks its
cost model. Only one of them computes at a time. The same prefix is fetched, and computed, `rounds`
times; medians, in milliseconds, as the workers themselves report them.

    python -m benchmarks.reuse --model small --connector shm
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from rich.console import Console
from rich.table import Table

from baton.v1 import common_pb2, decode_pb2, decode_pb2_grpc, worker_pb2, worker_pb2_grpc
from benchmarks.peers.models import FIRST_WORD, MODELS, model_folder
from cli.start.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

BLOCK_SIZE = 16
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Row:
    """One size."""

    num_blocks: int
    num_bytes: int = 0
    fetch_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)
    #: Until the first token, with the last token computed in both.
    fetched_ttft_ms: list[float] = field(default_factory=list)
    #: What the worker that asked its cost model did, round by round.
    auto_fetched: list[bool] = field(default_factory=list)


class Worker:
    """A decode worker that computes its prompts by itself."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self._address = address
        self._decode: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(channel)
        self._worker: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        self._id = common_pb2.WorkerId()

    async def wait_ready(self) -> None:
        """Wait until the worker answers."""
        info = await self._worker.GetInfo(
            worker_pb2.GetInfoRequest(), timeout=START_TIMEOUT_S, wait_for_ready=True
        )
        self._id = info.peer.worker

    def source(self, num_blocks: int) -> common_pb2.PrefixSource:
        """Return the worker as the holder of `num_blocks`."""
        return common_pb2.PrefixSource(
            worker=self._id, address=self._address, num_blocks=num_blocks
        )

    async def ask(
        self, prompt: Sequence[int], *sources: common_pb2.PrefixSource
    ) -> decode_pb2.DecodeResponse:
        """The last piece of an answer of one token."""
        request = decode_pb2.DecodeRequest(
            request_id="bench",
            token_ids=prompt,
            sampling=common_pb2.SamplingParams(max_tokens=1, ignore_eos=True),
            prefix_sources=sources,
        )
        pieces = [piece async for piece in self._decode.Generate(request, timeout=CALL_TIMEOUT_S)]
        return pieces[-1]

    async def forget(self) -> None:
        """Empty the worker's prefix cache."""
        await self._worker.ResetPrefixCache(
            worker_pb2.ResetPrefixCacheRequest(), timeout=CALL_TIMEOUT_S
        )


@asynccontextmanager
async def worker(model: Path, name: str, connector: str, policy: str) -> AsyncIterator[Worker]:
    """Run a decode worker as a process for the context, without a directory."""
    port = free_port()
    with tempfile.TemporaryDirectory() as runtime_dir:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.decode"),
            *("--model", str(model), "--name", name, "--directory", "127.0.0.1:1"),
            *("--port", str(port), "--connectors", connector, "--runtime-dir", runtime_dir),
            *("--num-threads", str(os.cpu_count() or 1), "--num-blocks", "512"),
            *("--block-size", str(BLOCK_SIZE), "--reuse-policy", policy),
            *("--reuse-patience-ms", "60000", "--log-level", "error"),
        )
        address = f"127.0.0.1:{port}"
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                yield Worker(address, channel)
        finally:
            process.terminate()
            await process.wait()


async def measure(model: Path, connector: str, rounds: int) -> list[Row]:
    """All sizes, after one round that is not counted."""
    async with AsyncExitStack() as stack:
        policies = {"holder": "never", "always": "always", "auto": "auto"}
        workers = {
            name: await stack.enter_async_context(worker(model, name, connector, policy))
            for name, policy in policies.items()
        }
        for each in workers.values():
            await each.wait_ready()
        await _measure_size(Row(SIZES[0]), workers, 1)
        rows = [Row(num_blocks) for num_blocks in SIZES]
        for row in rows:
            await _measure_size(row, workers, rounds)
        return rows


async def _measure_size(row: Row, workers: dict[str, Worker], rounds: int) -> None:
    rng = random.Random(row.num_blocks)
    prompt = [rng.randrange(FIRST_WORD, 32000) for _ in range(row.num_blocks * BLOCK_SIZE + 1)]
    source = workers["holder"].source(row.num_blocks)
    await workers["holder"].ask(prompt)
    for _ in range(rounds):
        timings = (await _from_scratch(workers["always"], prompt)).timings
        row.compute_ms.append(timings.prefill_ms)
        piece = await _from_scratch(workers["always"], prompt, source)
        if piece.usage.sources.fetched != row.num_blocks * BLOCK_SIZE:
            raise SystemExit(f"the prefix did not come: {piece.usage}")
        row.num_bytes = piece.timings.prefix_fetch_bytes
        row.fetch_ms.append(piece.timings.prefix_fetch_ms)
        row.fetched_ttft_ms.append(piece.timings.prefix_fetch_ms + piece.timings.prefill_ms)
        # It learns from both what computing and what fetching takes.
        await _from_scratch(workers["auto"], prompt)
        piece = await _from_scratch(workers["auto"], prompt, source)
        row.auto_fetched.append(piece.usage.sources.fetched > 0)


async def _from_scratch(
    worker: Worker, prompt: Sequence[int], *sources: common_pb2.PrefixSource
) -> decode_pb2.DecodeResponse:
    await worker.forget()
    return await worker.ask(prompt, *sources)


def show(rows: list[Row], title: str) -> Table:
    """One line per size."""
    table = Table(title=title)
    for name in (
        "blocks", "tokens", "MiB", "fetch ms", "compute ms", "compute / fetch",
        "TTFT with fetch ms", "auto fetched",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        fetch_ms, compute_ms = statistics.median(row.fetch_ms), statistics.median(row.compute_ms)
        table.add_row(
            str(row.num_blocks),
            str(row.num_blocks * BLOCK_SIZE),
            f"{row.num_bytes / 2**20:.1f}",
            f"{fetch_ms:.1f}",
            f"{compute_ms:.1f}",
            f"{compute_ms / fetch_ms:.1f}",
            f"{statistics.median(row.fetched_ttft_ms):.1f}",
            f"{sum(row.auto_fetched)} of {len(row.auto_fetched)}",
        )
    return table


@app.command()
def main(
    model: Annotated[str, typer.Option(help=" or ".join(MODELS))] = "small",
    connector: Annotated[str, typer.Option(help="shm or zmq")] = "shm",
    rounds: Annotated[int, typer.Option(help="measurements of each size")] = 5,
) -> None:
    """Measure one model over one connector."""
    rows = asyncio.run(measure(model_folder(model), connector, rounds))
    Console(width=120).print(show(rows, f"{model} over {connector}, {rounds} rounds"))


if __name__ == "__main__":
    app()
