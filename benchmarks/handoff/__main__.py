"""`make bench-handoff`: latencies and throughput of P/D and of the in-process engine."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.handoff.load import Run, Workload, drive
from benchmarks.handoff.systems import disaggregated, in_process
from shared.model.checkpoint.config import load_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from benchmarks.handoff.systems import Ask

DEFAULT_MODEL = Path("models/pydoc/checkpoint")


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint to serve.")] = DEFAULT_MODEL,
    num_requests: Annotated[int, typer.Option(help="Requests per pass.")] = 32,
    input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 512,
    output_len: Annotated[int, typer.Option(help="Output tokens.")] = 64,
    chunk: Annotated[int, typer.Option(help="Tokens computed per step.")] = 512,
    passes: Annotated[int, typer.Option(help="Passes of each system, alternating.")] = 3,
) -> None:
    """Compare prefill/decode on separate processes with the in-process engine."""
    systems: dict[str, Callable[[], AbstractAsyncContextManager[Ask]]] = {
        "in-process": partial(in_process, model, chunk),
        "P/D shm": partial(disaggregated, model, chunk, "shm"),
        "P/D shm, own cores": partial(disaggregated, model, chunk, "shm", "--core-lease", "off"),
        "P/D zmq": partial(disaggregated, model, chunk, "zmq"),
    }
    vocab_size = load_spec(model).vocab_size
    table = Table(
        "concurrency", "system", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "tok/s",
        title=f"{model.name}: {num_requests} requests, {input_len} → {output_len} tokens, "
        f"median of {passes}",
    )  # fmt: skip
    console = Console(width=100)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=2 * passes * len(systems))
        for concurrency in (1, 8):
            workload = Workload(
                num_requests=num_requests if concurrency > 1 else max(1, num_requests // 4),
                concurrency=concurrency,
                input_len=input_len,
                output_len=output_len,
                vocab_size=vocab_size,
            )
            runs: dict[str, list[Run]] = {name: [] for name in systems}
            for number in range(passes):
                order = list(systems) if number % 2 == 0 else list(reversed(systems))
                for name in order:
                    progress.update(task, description=f"{name}, {concurrency} at a time")
                    runs[name].append(asyncio.run(measure(systems[name], workload)))
                    progress.advance(task)
            for name, own in runs.items():
                table.add_row(str(concurrency), name, *row_of(own))
    console.print(table)


async def measure(
    system: Callable[[], AbstractAsyncContextManager[Ask]], workload: Workload
) -> Run:
    """Warm up with other prompts, then measure."""
    async with system() as ask:
        await drive(workload, ask, seed=1)
        return await drive(workload, ask, seed=2)


def row_of(runs: list[Run]) -> list[str]:
    """Medians over the passes of each pass's own percentiles."""
    ttfts = [sorted(trace.ttft_ms for trace in run.traces) for run in runs]
    itls = [sorted(gap for trace in run.traces for gap in trace.itls_ms) for run in runs]
    columns = [(ttfts, 0.5), (ttfts, 0.99), (itls, 0.5), (itls, 0.99)]
    cells = [f"{median(percentile(v, share) for v in values):.2f}" for values, share in columns]
    return [*cells, f"{median(run.tokens_per_s for run in runs):.0f}"]


def percentile(ordered: list[float], share: float) -> float:
    """The value at `share` of an ordered list, by nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    typer.run(main)
