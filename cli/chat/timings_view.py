"""A request's timings as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton_client import Timings, Usage

#: Rows before and after the first token: label and fields, which are summed.
BEFORE_FIRST_TOKEN = (
    ("queue", ("router_queue_ms", "decode_queue_ms", "prefill_queue_ms")),
    ("tokenize", ("tokenize_ms",)),
    ("route", ("route_ms",)),
    ("prefix from a peer", ("prefix_fetch_ms",)),
    ("prefill", ("prefill_ms",)),
)
AFTER_FIRST_TOKEN = (
    ("transfer, exposed", ("transfer_exposed_ms",)),
    ("decode", ("decode_ms",)),
)


def timings_table(timings: Timings, usage: Usage) -> Table:
    """Return a table with a row per stage, then the request's totals."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for label, value_ms in _sums(BEFORE_FIRST_TOKEN, timings):
        table.add_row(label, f"{value_ms:.1f} ms")
    workers = _workers(timings)
    table.add_row("first token", f"[bold]{timings.first_token_ms:.1f} ms[/]", workers)
    for label, value_ms in _sums(AFTER_FIRST_TOKEN, timings):
        note = _moved(timings) if label.startswith("transfer") else ""
        table.add_row(label, f"{value_ms:.1f} ms", note)
    table.add_row("total", f"[bold]{timings.total_ms:.1f} ms[/]")
    table.add_row("speed", tokens_per_s(timings, usage), "after the first token")
    counts = f"{usage.prompt_tokens} + {usage.completion_tokens}"
    table.add_row("tokens", counts, f"prompt + answer, {usage.cached_tokens} from a cache")
    return table


def tokens_per_s(timings: Timings, usage: Usage) -> str:
    """Speed of decoding: the first token is prefill's and does not count."""
    decode_s = timings.decode_ms / 1000
    if usage.completion_tokens < 2 or decode_s <= 0:
        return "–"
    return f"{(usage.completion_tokens - 1) / decode_s:.1f} tokens/s"


def _sums(
    rows: tuple[tuple[str, tuple[str, ...]], ...], timings: Timings
) -> Iterator[tuple[str, float]]:
    for label, fields in rows:
        yield label, sum(getattr(timings, field) for field in fields)


def _workers(timings: Timings) -> str:
    decode, prefill = timings.decode_worker or "?", timings.prefill_worker
    return f"{prefill} → {decode}" if prefill else f"{decode} alone"


def _moved(timings: Timings) -> str:
    if not timings.transfer_bytes:
        return "nothing to move"
    mib = timings.transfer_bytes / 2**20
    return f"{mib:.2f} MiB over {timings.connector} in {timings.transfer_ms:.1f} ms"
