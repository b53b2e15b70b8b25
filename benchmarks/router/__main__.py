"""What one router process adds to every token, and what it costs: `python -m benchmarks.router`.

A router on a core of its own; on the other cores decode workers that send stamped tokens on a
schedule, over real gRPC, and clients that stream over raw sockets. Added latency is from a worker's
hand to a client's: it includes gRPC's sending side and the client's wait for its core.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.router.checkpoint import write_checkpoint
from benchmarks.router.measurement import Bench, Load, Measured
from benchmarks.router.mock_worker import Arrivals


def main(
    streams: Annotated[
        int, typer.Option(help="Answers that are streamed at the same time.")
    ] = 1000,
    rate: Annotated[float, typer.Option(help="Tokens per second over all streams.")] = 2000.0,
    workers: Annotated[int, typer.Option(help="Mock decode workers.")] = 16,
    arrivals: Annotated[
        Arrivals, typer.Option(help="A worker's sequences advance together, or each by itself.")
    ] = Arrivals.STEPS,
    endpoint: Annotated[str, typer.Option(help="Path below /v1.")] = "chat/completions",
    prompt_chars: Annotated[int, typer.Option(help="Length of every prompt.")] = 200,
    max_tokens: Annotated[int, typer.Option(help="Tokens of every answer.")] = 256,
    ramp_s: Annotated[float, typer.Option(help="Seconds to open the streams in.")] = 4.0,
    duration_s: Annotated[float, typer.Option(help="Seconds to measure.")] = 10.0,
    mock_processes: Annotated[int, typer.Option(help="Processes for the workers.")] = 1,
    client_processes: Annotated[int, typer.Option(help="Processes for the clients.")] = 1,
    models: Annotated[int, typer.Option(help="Models of the router, in equal shares.")] = 1,
    router_flags: Annotated[str, typer.Option(help="Further flags of the router.")] = "",
    label: Annotated[str, typer.Option(help="What is measured, for the table.")] = "router",
    result: Annotated[Path | None, typer.Option(help="File to append the numbers to.")] = None,
) -> None:
    """Measure a router between mock workers and streaming clients."""
    load = Load(
        streams=streams,
        tokens_per_s=rate / streams,
        workers=workers,
        arrivals=arrivals,
        endpoint=endpoint,
        prompt_chars=prompt_chars,
        max_tokens=max_tokens,
        ramp_s=ramp_s,
        duration_s=duration_s,
        mock_processes=mock_processes,
        client_processes=client_processes,
        router_flags=tuple(router_flags.split()),
        models=models,
    )
    measured = _measure(load)
    numbers = describe(label, measured)
    if result is not None:
        with result.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")
    table = Table("", label, title=f"{streams} streams, {rate:g} tokens/s asked, {arrivals.value}")
    for key, value in list(numbers.items())[1:]:
        table.add_row(key, str(value))
    Console(width=100).print(table)
    raise typer.Exit(1 if measured.num_failed or not measured.num_tokens else 0)


def _measure(load: Load) -> Measured:
    with tempfile.TemporaryDirectory(prefix="baton-router-") as name:
        folder = Path(name)
        write_checkpoint(folder)
        with Bench(folder, load) as bench:
            return bench.measure()


def describe(label: str, measured: Measured) -> dict[str, object]:
    """The numbers under the names of the table."""
    load, rss = measured.load, measured.rss_mib
    return {
        "label": label,
        "tokens/s": round(measured.tokens_per_s),
        "added ms p50": round(measured.added_ms(50), 2),
        "added ms p90": round(measured.added_ms(90), 2),
        "added ms p99": round(measured.added_ms(99), 2),
        "added ms max": round(measured.added_ms(100), 2),
        "router CPU µs/token": round(measured.cpu_us_per_token, 1),
        "  of it in user space": round(measured.router_user_s / measured.num_tokens * 1e6, 1)
        if measured.num_tokens
        else None,
        "router core used": round(measured.router_cpu_s / load.duration_s, 3),
        "tokens/event": round(measured.num_tokens / max(1, measured.num_events), 3),
        "events/read": round(measured.num_events / max(1, measured.num_reads), 3),
        "requests ended": measured.num_requests,
        "failed": measured.num_failed,
        "RSS MiB first, max, last": f"{rss[0]:.1f}, {max(rss):.1f}, {rss[-1]:.1f}",
        "client core used": round(measured.clients_cpu_s / load.duration_s, 3),
        "mock core used": round(measured.mocks_cpu_s / load.duration_s, 3),
        "streams": load.streams,
        "workers": load.workers,
        "models": load.models,
        "arrivals": load.arrivals.value,
        "endpoint": load.endpoint,
        "max_tokens": load.max_tokens,
    }


if __name__ == "__main__":
    typer.run(main)
