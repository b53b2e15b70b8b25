"""`python -m benchmarks.handoff.by_layers`: the second token, with KV by layers and as a whole.

Each way has a cluster of its own, and they take turns. Prompts come one at a time.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.handoff.systems import disaggregated
from benchmarks.transfer.link import run_on_link
from shared.model.checkpoint.config import load_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.handoff.systems import Ask


@dataclass(slots=True)
class Seen:
    """Of one way, by prompt, in milliseconds."""

    first: list[float] = field(default_factory=list)
    #: From the first token to the second.
    second: list[float] = field(default_factory=list)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint to serve.")] = Path(
        "models/pydoc/checkpoint"
    ),
    input_len: Annotated[int, typer.Option(help="Prompt tokens.")] = 512,
    chunk: Annotated[int, typer.Option(help="Tokens computed per step.")] = 512,
    rounds: Annotated[int, typer.Option(help="Prompts of each way.")] = 20,
    connector: Annotated[str, typer.Option()] = "zmq",
    link_gbit: Annotated[float, typer.Option(help="Rate of the link; 0: as it is.")] = 0,
) -> None:
    """Compare what the second token waits for."""
    run_on_link("benchmarks.handoff.by_layers", link_gbit)
    seen = asyncio.run(_compare(model, input_len, chunk, rounds, connector))
    table = Table("KV", "TTFT p50 ms", "first to second token p50 ms", "sum p50 ms")
    for way, one in seen.items():
        both = [sum(pair) for pair in zip(one.first, one.second, strict=True)]
        table.add_row(
            "as a whole" if way else "by layers",
            *(f"{median(times):.1f}" for times in (one.first, one.second, both)),
        )
    Console(width=110).print(table)


async def _compare(
    model: Path, input_len: int, chunk: int, rounds: int, connector: str
) -> dict[str, Seen]:
    seen = {"off": Seen(), "on": Seen()}
    vocab_size = load_spec(model).vocab_size
    rng = random.Random(1)
    async with AsyncExitStack() as stack:
        ways = {
            way: await stack.enter_async_context(
                disaggregated(model, chunk, connector, "--transfer-by-layers", way)
            )
            for way in seen
        }
        for number in track(range(rounds + 2), "prompts"):
            prompt = [rng.randrange(10, vocab_size) for _ in range(input_len)]
            order = list(ways) if number % 2 else list(ways)[::-1]
            for way in order:
                times = await _ask(ways[way], f"{way}-{number}", prompt)
                if number >= 2:
                    seen[way].first.append(times[0])
                    seen[way].second.append(times[1])
    return seen


async def _ask(ask: Ask, name: str, prompt: Sequence[int]) -> tuple[float, float]:
    stamps = [time.monotonic()]
    async for num_tokens in ask(name, prompt, 8):
        stamps += [time.monotonic()] * num_tokens
    return (stamps[1] - stamps[0]) * 1e3, (stamps[2] - stamps[1]) * 1e3


if __name__ == "__main__":
    typer.run(main)
