"""Time until a model answers, in new processes: `baton bench startup`.

Flags and the result file are those of `vllm bench startup`; further flags are arguments of the
engine. A cold start has an empty folder of caches: CPU kernels are compiled, GGUF files are read
anew. The files of the model stay in the page cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import typer
from tqdm import tqdm

from benchmarks.offline import first_token
from benchmarks.offline.command import command, model_of
from benchmarks.offline.report import check_output, describe_times, write_output
from benchmarks.offline.settings import StartupSettings
from cli.places import PREFIX, python_command, python_environ
from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

app = typer.Typer(add_completion=False)


@command(app, StartupSettings)
def startup(settings: StartupSettings, words: Sequence[str]) -> None:
    """Measure the time from the start of a process to the first token of a prompt."""
    check_output(settings.output.output_json)
    model, starts = model_of(settings.engine), settings.starts
    results: dict[str, Any] = {"model_id": model}
    cold_s = []
    for _ in tqdm(range(starts.num_iters_cold), desc="Cold startup iterations"):
        with tempfile.TemporaryDirectory(prefix="baton-cold-") as folder:
            cold_s.append(_start(model, words, {"BATON_CACHE_DIR": folder}))
    for _ in tqdm(range(starts.num_iters_warmup), desc="Warmup iterations"):
        _start(model, words, {})
    warm_s = [
        _start(model, words, {})
        for _ in tqdm(range(starts.num_iters_warm), desc="Warm startup iterations")
    ]
    for kind, times_s in (("cold", cold_s), ("warm", warm_s)):
        if times_s:
            described = describe_times(f"{kind} startup time", times_s)
            results[f"avg_{kind}_startup_time"] = described["mean"]
            results[f"{kind}_startup_times"] = described["values"]
            results[f"{kind}_startup_percentiles"] = described["percentiles"]
    write_output(settings.output.output_json, results)


def _start(model: str, words: Sequence[str], environ: Mapping[str, str]) -> float:
    """Return the seconds of one start.

    Raises:
        ModelLoadError: the process failed.
    """
    done = subprocess.run(
        [*python_command(first_token.__name__.removeprefix(PREFIX)), model, *words],
        env={**python_environ(), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise ModelLoadError(f"a start of {model} ended with exit code {done.returncode}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


if __name__ == "__main__":
    app()
