"""Steps in which every sequence decodes: two ranks of one thread beside one process of two.

Both compute in turns, on the same two cores.

    python -m benchmarks.ranks.decode
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.models import MODELS
from shared.model.attention.base import AttentionMetadata
from shared.model.loader import load_model
from shared.model.random_checkpoint import write_random_checkpoint
from shared.model.sharding.split import Split
from shared.ranks.shared_memory import SPIN_S, SharedMemoryCollective, collective_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.model.loaded import LoadedModel

NUM_SEQUENCES = (1, 4, 16)
CONTEXT = 512
BLOCK_SIZE = 16
#: Steps of a round, and rounds of each number of sequences.
NUM_STEPS, NUM_ROUNDS = 3, 9
_SIZE = 2

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="small, medium, experts or hybrid.")] = "medium",
    quantization: Annotated[str, typer.Option(help="none, int8 or int4.")] = "none",
    cpus: Annotated[str, typer.Option(help="One for each rank, with a comma between.")] = "0,1",
    spin_us: Annotated[float, typer.Option(help="How long ranks spin before they sleep.")] = (
        SPIN_S * 1e6
    ),
) -> None:
    """Measure, and print a table."""
    if context.invoked_subcommand is not None:
        return
    collective = collective_file(_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        path = _write_config(Path(folder), model)
        command = [sys.executable, "-m", "benchmarks.ranks.decode", "follow", folder, quantization]
        command += [str(spin_us)]
        follower = subprocess.Popen([*command, str(collective.fd), cpus], pass_fds=(collective.fd,))
        try:
            alone = load_model(path, load_format="dummy", quantization=quantization, bind=cpus)
            together = _load_part(path, quantization, collective.fd, 0, cpus, spin_us)
            Console(width=110).print(_compare(alone, together, f"{model}, {quantization}"))
            follower.wait(timeout=60)
        finally:
            follower.kill()
            follower.wait()


@app.command(hidden=True)
def follow(folder: str, quantization: str, spin_us: float, fd: int, cpus: str) -> None:
    """The second rank."""
    loaded = _load_part(Path(folder), quantization, fd, 1, cpus, spin_us)
    for step in _steps(loaded):
        for _ in range(NUM_ROUNDS + 1):
            _round_ms(step)


def _write_config(folder: Path, model: str) -> Path:
    """Write a model's config, whose weights are drawn, into a folder."""
    spec = MODELS[model]
    write_random_checkpoint(folder, dataclasses.replace(spec, num_layers=1))
    file = folder / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    raw["num_hidden_layers"] = spec.num_layers
    file.write_text(json.dumps(raw), encoding="utf-8")
    return folder


def _load_part(
    path: Path, quantization: str, fd: int, rank: int, cpus: str, spin_us: float
) -> LoadedModel:
    # Each has a core, whatever this process sees.
    collective = SharedMemoryCollective(fd, rank, _SIZE, spin_s=spin_us / 1e6, timeout_s=300.0)
    return load_model(
        path,
        load_format="dummy",
        quantization=quantization,
        attention_backend="native",
        bind=cpus,
        split=Split(rank=rank, size=_SIZE),
        collective=collective,
    )


def _steps(loaded: LoadedModel) -> Iterator[Callable[[], None]]:
    """Yield a step by number of sequences."""
    model, blocks = loaded.model, -(-CONTEXT // BLOCK_SIZE)
    for num in NUM_SEQUENCES:
        caches = []
        for layers in model.spec.kv_groups:
            kinds, heads, dim = model.spec.attentions[layers[0]].kv_shape
            shape = (num * blocks, len(layers), kinds, heads, BLOCK_SIZE, dim)
            caches.append(torch.randn(shape).to(loaded.dtype))
        tables = torch.arange(num * blocks, dtype=torch.int32).view(num, blocks)
        own = AttentionMetadata(
            query_start_loc=torch.arange(num + 1, dtype=torch.int32),
            seq_lens=torch.full((num,), CONTEXT, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=tables[:, -1].long() * BLOCK_SIZE + (CONTEXT - 1) % BLOCK_SIZE,
            query_lens_list=(1,) * num,
            seq_lens_list=(CONTEXT,) * num,
        )
        metadata = dataclasses.replace(own, others=(own,) * (len(caches) - 1))
        tokens, positions = torch.arange(num) * 97 + 300, torch.full((num,), CONTEXT - 1)

        def step() -> None:
            hidden = model.forward(tokens, positions, caches, metadata)  # noqa: B023
            model.compute_logits(hidden).argmax(dim=-1)

        yield step


def _round_ms(step: Callable[[], None]) -> float:
    """Return the time of a step."""
    step()
    began_s = time.perf_counter()
    for _ in range(NUM_STEPS):
        step()
    return (time.perf_counter() - began_s) / NUM_STEPS * 1e3


def _compare(alone: LoadedModel, together: LoadedModel, title: str) -> Table:
    title = f"{title}: ms of a step, medians and the best of {NUM_ROUNDS} rounds"
    table = Table(
        "sequences", "one process", "two ranks", "speed of ranks", "best speed", title=title
    )
    for num, one, two in zip(NUM_SEQUENCES, _steps(alone), _steps(together), strict=True):
        _round_ms(one)
        _round_ms(two)
        rounds = [(_round_ms(one), _round_ms(two)) for _ in range(NUM_ROUNDS)]
        ones, twos = (statistics.median(times) for times in zip(*rounds, strict=True))
        bests = [min(times) for times in zip(*rounds, strict=True)]
        table.add_row(
            str(num),
            f"{ones:.2f}, {bests[0]:.2f}",
            f"{twos:.2f}, {bests[1]:.2f}",
            f"{ones / twos:.2f}",
            f"{bests[0] / bests[1]:.2f}",
        )
    return table


if __name__ == "__main__":
    app()
