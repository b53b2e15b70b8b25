"""Load an OpenAI-compatible server and measure what its clients see: `baton bench serve`.

Flags, definitions and the result file are those of `vllm bench serve`. Exit codes: 0 all answered,
1 a request failed or there is no server, 2 the flags make no sense.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import typer
import uvloop
from rich.console import Console
from rich.text import Text

from benchmarks.load.measurement import Measurement, measure
from benchmarks.load.metrics import Summary, summarise
from benchmarks.load.options import ManyValuesCommand, takes_settings
from benchmarks.load.plan import Plan, make_plan
from benchmarks.load.report.result import (
    describe_requests,
    describe_run,
    describe_summary,
    result_path,
    save_result,
)
from benchmarks.load.report.terminal import show_report
from benchmarks.load.settings import LoadSettings
from shared.errors import BatonError, ConfigError

if TYPE_CHECKING:
    from benchmarks.load.settings import ResultSettings

app = typer.Typer(add_completion=False)


@app.command("serve", cls=ManyValuesCommand)
@takes_settings(LoadSettings)
def serve(settings: LoadSettings) -> None:
    """Send requests to a server at their own pace, and report latency, throughput and goodput."""
    progress = Console(stderr=True)
    try:
        plan = make_plan(settings)
        _check_plot(settings.result)
        measured = uvloop.run(measure(settings, plan, progress))
    except BatonError as error:
        progress.print(Text.assemble(("error: ", "bold red"), str(error)))
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error
    summary = summarise(
        measured.run.outcomes,
        measured.run.duration_s,
        percentiles=plan.percentiles,
        slos_ms=plan.slos_ms,
    )
    _show(settings, plan, measured, summary)
    if summary.failed:
        raise typer.Exit(1)


def _show(settings: LoadSettings, plan: Plan, measured: Measurement, summary: Summary) -> None:
    console = Console()
    names = latency_names(settings, plan)
    show_report(
        console,
        summary,
        measured.run.outcomes,
        names,
        title=f"{measured.model}, {describe_rate(settings)}",
        extras=measured.extras,
    )
    now = datetime.now().astimezone()
    if settings.result.save_result or settings.result.append_result:
        path = result_path(settings, model=measured.model, now=now)
        content = (
            describe_run(settings, plan, model=measured.model, now=now)
            | describe_summary(summary, names)
            | measured.extras
            | (describe_requests(measured.run.outcomes) if settings.result.save_detailed else {})
        )
        save_result(content, path, settings.result)
        console.print(f"result: {path}", highlight=False, soft_wrap=True)
    if settings.result.plot and summary.completed:
        from benchmarks.load.report.plot import save_plot  # noqa: PLC0415 - slow, and matplotlib optional

        title = f"{settings.result.label or measured.model}: {describe_rate(settings)}"
        save_plot(
            measured.run.outcomes,
            settings.result.plot,
            title=title,
            mean_tokens_per_s=summary.output_throughput,
            slos_ms=plan.slos_ms,
        )
        console.print(f"plot: {settings.result.plot}", highlight=False, soft_wrap=True)


def latency_names(settings: LoadSettings, plan: Plan) -> list[str]:
    """The latencies that were asked for, and the client's own queue where there is one."""
    names = dict.fromkeys(plan.latency_names)
    if settings.traffic.max_concurrency is not None:
        names |= dict.fromkeys(("client_queue_time", "e2el_including_client_queue"))
    return list(names)


def describe_rate(settings: LoadSettings) -> str:
    """The load in a few words, for titles."""
    traffic = settings.traffic
    words = f"{traffic.num_prompts} requests at {traffic.request_rate:g}/s"
    if traffic.ramp_up_strategy:
        start, end = traffic.ramp_up_start_rps, traffic.ramp_up_end_rps
        words = f"{traffic.num_prompts} requests, {start}/s to {end}/s {traffic.ramp_up_strategy}"
    elif traffic.request_rate == float("inf"):
        words = f"{traffic.num_prompts} requests at once"
    if traffic.max_concurrency is not None:
        words += f", at most {traffic.max_concurrency} running"
    return words


def _check_plot(settings: ResultSettings) -> None:
    """Say before the run, not after it, that the picture cannot be drawn."""
    if settings.plot is None:
        return
    if settings.plot.suffix not in {".png", ".svg", ".pdf"}:
        raise ConfigError(f"--plot: {settings.plot} is not a .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib") from error


if __name__ == "__main__":
    app()
