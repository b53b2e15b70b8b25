"""What a person sees: progress while it runs, then tables, and what failed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from benchmarks.load.metrics import LATENCIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from benchmarks.load.metrics import Summary
    from benchmarks.load.outcome import Outcome

MAX_ERRORS = 10
# From here on arrivals are no longer what was asked for.
LAG_WORTH_A_WARNING_MS = 50.0


class RunProgress:
    """A bar with the number of failures and the output rate. A context manager."""

    def __init__(self, console: Console, total: int, *, disable: bool) -> None:
        self._progress = Progress(
            TextColumn("[bold]requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TextColumn("[red]{task.fields[failures]}"),
            TimeElapsedColumn(),
            console=console,
            # Drawing shares this process with the clock of every request.
            refresh_per_second=4,
            transient=True,
            disable=disable,
        )
        self._task: TaskID = self._progress.add_task("run", total=total, tokens=0, failures="")
        self._num_tokens = 0
        self._num_failed = 0

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, outcome: Outcome) -> None:
        """One more request has ended."""
        self._num_tokens += outcome.output_len
        self._num_failed += not outcome.success
        failures = f"{self._num_failed} failed" if self._num_failed else ""
        self._progress.update(self._task, advance=1, tokens=self._num_tokens, failures=failures)


def show_report(
    console: Console,
    summary: Summary,
    outcomes: Sequence[Outcome],
    latency_names: Sequence[str],
    *,
    title: str,
    extras: Mapping[str, Any],
) -> None:
    """Print everything about a finished run."""
    console.print(_counts_table(summary, title, extras))
    if summary.completed:
        console.print(_latency_table(summary, latency_names))
    if summary.max_lag_ms > LAG_WORTH_A_WARNING_MS:
        console.print(
            f"[yellow]Requests left up to {summary.max_lag_ms:.0f} ms after their time: this "
            "process could not keep up. Lower the rate, or run it on a machine with free cores."
        )
    _show_failures(console, outcomes)


def _counts_table(summary: Summary, title: str, extras: Mapping[str, Any]) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column(justify="right")
    failed = Text(str(summary.failed), style="bold red" if summary.failed else "")
    goodput = summary.request_goodput
    rows: list[tuple[str, str | Text]] = [
        ("Successful requests", str(summary.completed)),
        ("Failed requests", failed),
        ("Duration (s)", f"{summary.duration_s:.2f}"),
        ("Input tokens", f"{summary.total_input_tokens:,}"),
        ("Output tokens", f"{summary.total_output_tokens:,}"),
        ("Request throughput (req/s)", f"{summary.request_throughput:.2f}"),
        ("Request goodput (req/s)", "" if goodput is None else f"{goodput:.2f}"),
        ("Output throughput (tok/s)", f"{summary.output_throughput:,.2f}"),
        ("Peak output throughput (tok/s)", f"{summary.max_output_tokens_per_s:,.0f}"),
        ("Total token throughput (tok/s)", f"{summary.total_token_throughput:,.2f}"),
        ("Peak concurrent requests", str(summary.max_concurrent_requests)),
    ]
    if "spec_decode_acceptance_rate" in extras:
        rate = extras["spec_decode_acceptance_rate"]
        length = extras["spec_decode_acceptance_length"]
        rows.append(("Speculation: accepted", f"{rate:.1f} %, length {length:.2f}"))
    for name, value in rows:
        if value != "":
            table.add_row(name, value)
    return table


def _latency_table(summary: Summary, names: Sequence[str]) -> Table:
    percentiles = list(summary.latencies[names[0]].percentiles_ms)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("Latency (ms)", style="dim")
    for heading in ("Mean", "Median", "Std", *(f"P{p:g}" for p in percentiles)):
        table.add_column(heading, justify="right")
    for name in names:
        latency = summary.latencies[name]
        values = (latency.mean_ms, latency.median_ms, latency.std_ms)
        cells = [f"{value:,.2f}" for value in (*values, *latency.percentiles_ms.values())]
        table.add_row(LATENCIES[name], *cells)
    return table


def _show_failures(console: Console, outcomes: Sequence[Outcome]) -> None:
    errors = Counter(outcome.error for outcome in outcomes if outcome.error)
    if not errors:
        return
    console.print(f"[bold red]{errors.total()} of {len(outcomes)} requests failed:")
    for error, count in errors.most_common(MAX_ERRORS):
        console.print(Text(f"  {count:>5} × {error}"), soft_wrap=True)
    if len(errors) > MAX_ERRORS:
        console.print(f"  and {len(errors) - MAX_ERRORS} other messages; --save-detailed keeps all")
