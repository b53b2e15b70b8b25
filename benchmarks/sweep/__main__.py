"""`baton bench sweep serve|plot|plot_pareto`: names of flags and files are those of vLLM's."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from benchmarks.sweep.combinations import read_combinations
from benchmarks.sweep.experiment import Experiment
from shared.errors import BatonError, ConfigError

if TYPE_CHECKING:
    from types import ModuleType

app = typer.Typer(add_completion=False, no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder of an experiment.")]
Picture = Annotated[
    Path | None, typer.Option(help="File of the picture; default: in the experiment's folder.")
]


@app.command()
def serve(
    serve_cmd: Annotated[str, typer.Option(help="What starts a server: baton serve MODEL …")],
    bench_cmd: Annotated[str, typer.Option(help="What puts load on it: baton bench serve …")],
    serve_params: Annotated[
        Path | None, typer.Option(help="JSON of flags for the server, one object per way.")
    ] = None,
    bench_params: Annotated[
        Path | None, typer.Option(help="JSON of flags for the load, one object per load.")
    ] = None,
    output_dir: Annotated[Path, typer.Option("-o", "--output-dir", help="For results.")] = Path(
        "results"
    ),
    experiment_name: Annotated[
        str | None, typer.Option("-e", "--experiment-name", help="Default: the time.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Name of an experiment that goes on where it ended.")
    ] = None,
    num_runs: Annotated[int, typer.Option(min=1, help="Runs of each load.")] = 3,
    base_url: Annotated[str, typer.Option(help="Where the server answers.")] = (
        "http://127.0.0.1:8000"
    ),
    server_ready_timeout: Annotated[float, typer.Option(help="Longest start, in seconds.")] = 300,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands only.")] = False,
) -> None:
    """Start a server in each way, and put each load on it; write summary.csv."""
    name = resume or experiment_name or datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    experiment = Experiment(
        serve=shlex.split(serve_cmd),
        bench=shlex.split(bench_cmd),
        servers=read_combinations(serve_params, "--serve-params"),
        loads=read_combinations(bench_params, "--bench-params"),
        num_runs=num_runs,
        folder=output_dir / name,
        url=base_url,
        ready_timeout_s=server_ready_timeout,
    )
    if resume is not None and not experiment.folder.is_dir():
        raise ConfigError(f"--resume: there is no experiment {experiment.folder}")
    if dry_run:
        for command in experiment.commands():
            print(shlex.join(command))
        return
    results = experiment.run()
    print(f"{len(results)} results: {experiment.folder / 'summary.csv'}")


@app.command()
def plot(
    folder: Folder,
    var_x: Annotated[str, typer.Option(help="Key of the results.")] = "request_rate",
    var_y: Annotated[str, typer.Option(help="Key of the results.")] = "p99_e2el_ms",
    curve_by: Annotated[str | None, typer.Option(help="Key: a curve for each value.")] = None,
    out: Picture = None,
) -> None:
    """Draw one number of the results over another."""
    plots = _plots()
    path = out or folder / f"{var_y}-over-{var_x}.png"
    plots.plot_lines(plots.read_results(folder), path, var_x=var_x, var_y=var_y, curve_by=curve_by)
    print(f"plot: {path}")


@app.command("plot_pareto")
def plot_pareto(
    folder: Folder,
    user_count_var: Annotated[str, typer.Option(help="Key with the number of users.")] = (
        "max_concurrency"
    ),
    label_by: Annotated[str | None, typer.Option(help="Key: a front for each value.")] = None,
    out: Picture = None,
) -> None:
    """Draw throughput against the speed that one user sees, and the best trade between them."""
    plots = _plots()
    path = out or folder / "pareto.png"
    results = plots.read_results(folder)
    plots.plot_pareto(results, path, user_count_var=user_count_var, label_by=label_by)
    print(f"plot: {path}")


def _plots() -> ModuleType:
    """Return the module that draws.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from benchmarks.sweep import plots  # noqa: PLC0415 matplotlib is slow, and optional
    except ModuleNotFoundError as error:
        raise ConfigError("pictures need matplotlib: pip install matplotlib") from error
    return plots


def main() -> None:
    """Run the command; an error is a line, with exit code 2 for wrong flags and 1 otherwise."""
    try:
        app(prog_name="baton bench sweep")
    except BatonError as error:
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)))
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from error


if __name__ == "__main__":
    main()
