"""How fast KV blocks move: each connector beside what bounds it, in the same run.

`memcpy` copies the same blocks within this process; `raw tcp` and `raw ipc` are a bare PUSH/PULL
pair that sends the same bytes without copy and drops them. The sender is a process of its own,
except for `local`.

    python -m benchmarks.transfer run --total-mib 512 --rounds 5
    python -m benchmarks.transfer run --connectors zmq,zmq+curve
    python -m benchmarks.transfer run --connectors zmq,zmq+packed,zmq+auto --link-gbit 8

With `--link-gbit` the loopback device of a network namespace of its own has that rate (tc's token
bucket), for all that is measured but `memcpy`, `local` and what goes through Unix sockets.
"""

from __future__ import annotations

import asyncio
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.transfer import endpoint as endpoints
from benchmarks.transfer import packing, rates
from benchmarks.transfer import sender as sending
from benchmarks.transfer.link import run_on_link
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
    link_gbit: Annotated[float, typer.Option(help="Rate of the network; 0: no limit.")] = 0.0,
) -> None:
    """Measure the rate of every connector.

    Options of one follow its name: `zmq+curve` is encrypted, `zmq+packed` packs, `zmq+auto` does
    so where that is faster. `zmq+endpoint` receives into the blocks of another process, told by
    this one: what its control connection adds is most of what `--total-mib 1` takes.
    """
    run_on_link("benchmarks.transfer", link_gbit)
    layout = KVLayout.single(
        num_layers=num_layers, num_kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16"
    )
    num_blocks = total_mib * rates.MIB // layout.block_bytes
    bench = asyncio.run(rates.measure(connectors.split(","), layout, num_blocks, rounds))
    Console(width=110).print(rates.table_of(bench))


@app.command("packing")
def packing_(
    model: Annotated[Path, typer.Option(help="Whose KV is packed.")] = Path(
        "models/pydoc/checkpoint"
    ),
    text: Annotated[Path, typer.Option(help="Whose first tokens it has read.")] = Path("README.md"),
    num_tokens: Annotated[int, typer.Option()] = 1024,
    large_mib: Annotated[int, typer.Option(help="For rates beyond the caches.")] = 64,
    rounds: Annotated[int, typer.Option()] = 20,
) -> None:
    """Measure how much KV shrinks, and how fast."""
    real = packing.kv_of(model, text.read_text(encoding="utf-8"), num_tokens)
    large = large_mib * rates.MIB
    subjects = {
        f"{model.parent.name}": real,
        f"{model.parent.name}, again and again": packing.repeated(real, large),
        "normal": packing.normal(2 * rates.MIB),
        "normal, a piece": packing.normal(16 * rates.MIB),
        "normal, large": packing.normal(large),
    }
    Console(width=130).print(packing.table(subjects, rounds))


@app.command(hidden=True)
def serve(folder: Path, layout: str, num_blocks: int, names: str) -> None:
    """The sending process."""
    layout_ = KVLayout.single(**json.loads(layout))
    asyncio.run(sending.serve(names.split(","), folder, layout_, num_blocks))


@app.command(hidden=True)
def endpoint(layout: str, num_blocks: int, token: str) -> None:
    """The process of a remote rank."""
    endpoints.serve(KVLayout.single(**json.loads(layout)), num_blocks, bytes.fromhex(token))


if __name__ == "__main__":
    app()
