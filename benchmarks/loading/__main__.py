"""`make bench-loading`: seconds and memory of loading checkpoints of 2 GB, each in a new process.

Memory is what the kernel counts as resident (RSS), pages of mapped files included. Files are read
before, so that they come from the page cache, and count as changed, so that they are hashed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.loading.checkpoints import FORMATS, files, make

DEFAULT_FOLDER = Path.home() / ".cache/baton-bench/loading"
_MIB = 1024
_PIECE = 1 << 24


def main(
    folder: Annotated[Path, typer.Option(help="Where checkpoints are kept.")] = DEFAULT_FOLDER,
    gigabytes: Annotated[float, typer.Option(help="Size of each checkpoint.")] = 2.0,
    formats: Annotated[str, typer.Option(help="Names, by commas.")] = ",".join(FORMATS),
    backend: Annotated[str, typer.Option(help="native or torch.")] = "native",
    rounds: Annotated[int, typer.Option(help="Loads of each, of which the fastest counts.")] = 3,
) -> None:
    """Measure."""
    table = Table(
        "format", "GB", "seconds", "GB/s", "CPU s", "weights", "RSS before", "after", "peak",
        "peak - after", "peak, no files", title=f"{backend}, MiB, the fastest of {rounds}",
    )  # fmt: skip
    for name in formats.split(","):
        path = make(name, int(gigabytes * 1e9), folder)
        size = sum(file.stat().st_size for file in files(path)) / 1e9
        runs = [_load(path, backend) for _ in range(rounds)]
        best = min(runs, key=lambda run: run["seconds"])
        peak, after = (max(run["after"][key] for run in runs) for key in ("VmHWM", "VmRSS"))
        above = max(run["after"]["VmHWM"] - run["after"]["VmRSS"] for run in runs)
        table.add_row(
            name,
            f"{size:.2f}",
            f"{best['seconds']:.2f}",
            f"{size / best['seconds']:.2f}",
            f"{best['cpu_seconds']:.1f}",
            *(
                f"{kib / _MIB:,.0f}"
                for kib in (
                    best["weight_bytes"] / 1024,
                    best["before"]["VmRSS"],
                    after,
                    peak,
                    above,
                    max(run["peak_anon_kib"] for run in runs),
                )
            ),
        )
    Console(width=120).print(table)


def _load(path: Path, backend: str) -> dict[str, Any]:
    """Load a checkpoint in a new process."""
    piece = bytearray(_PIECE)
    for file in files(path):
        os.utime(file)
        with file.open("rb", buffering=0) as raw:
            while raw.readinto(piece):
                pass
    own = files(path)[0]
    target = own if own.suffix == ".gguf" else path
    command = [sys.executable, "-m", "benchmarks.loading.once", str(target), backend]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    typer.run(main)
