"""How fast KV blocks move: each connector beside what bounds it, in the same run.

`memcpy` copies the same blocks within this process; `raw tcp` and `raw ipc` are a bare PUSH/PULL
pair that sends the same bytes without copy and drops them. The sender is a process of its own,
except for `local`.

    python -m benchmarks.transfer run --total-mib 512 --rounds 5
    python -m benchmarks.transfer run --connectors zmq,zmq+curve
"""

from __future__ import annotations

import asyncio
import json
import os
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.transfer import rates
from benchmarks.transfer import sender as sending
from shared.kv.layout import KVLayout

REMOTE = "shm,zmq_ipc,zmq,nixl" if find_spec("nixl") else "shm,zmq_ipc,zmq"
app = typer.Typer(add_completion=False)
# Nothing here leaves this machine.
os.environ.setdefault("UCX_NET_DEVICES", "lo")


@app.command()
def run(
    total_mib: Annotated[int, typer.Option(help="Bytes moved per round.")] = 512,
    rounds: Annotated[int, typer.Option(help="Rounds that count; one more warms up.")] = 5,
    num_layers: Annotated[int, typer.Option(help="32 layers are 2 MiB per block.")] = 32,
    connectors: Annotated[str, typer.Option(help="Which, with commas between.")] = REMOTE,
) -> None:
    """Measure the rate of every connector; `zmq+curve` is `zmq` with encryption."""
    layout = KVLayout.single(
        num_layers=num_layers, num_kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16"
    )
    num_blocks = total_mib * rates.MIB // layout.block_bytes
    bench = asyncio.run(rates.measure(connectors.split(","), layout, num_blocks, rounds))
    Console(width=110).print(rates.table_of(bench))


@app.command(hidden=True)
def serve(folder: Path, layout: str, num_blocks: int, names: str) -> None:
    """The sending process."""
    layout_ = KVLayout.single(**json.loads(layout))
    asyncio.run(sending.serve(names.split(","), folder, layout_, num_blocks))


if __name__ == "__main__":
    app()
