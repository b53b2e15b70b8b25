"""A request's timings as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


def timings_table(
    timings: Mapping[str, Any], *, prompt_tokens: int, completion_tokens: int, cached_tokens: int
) -> Table:
    """Return the table. `timings` has the fields of `Timings` in the contract."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for label, value_ms in _sums(BEFORE_FIRST_TOKEN, timings):
        table.add_row(label, f"{value_ms:.1f} ms")
    workers = _workers(timings)
    table.add_row("first token", f"[bold]{_number(timings, 'first_token_ms'):.1f} ms[/]", workers)
    for label, value_ms in _sums(AFTER_FIRST_TOKEN, timings):
        note = _moved(timings) if label.startswith("transfer") else ""
        table.add_row(label, f"{value_ms:.1f} ms", note)
    table.add_row("total", f"[bold]{_number(timings, 'total_ms'):.1f} ms[/]")
    table.add_row("speed", tokens_per_s(timings, completion_tokens), "after the first token")
    counts = f"{prompt_tokens} + {completion_tokens}"
    table.add_row("tokens", counts, f"prompt + answer, {cached_tokens} from a cache")
    return table


def tokens_per_s(timings: Mapping[str, Any], completion_tokens: int) -> str:
    """Return the speed of decoding, without the first token, which prefill computes."""
    decode_s = _number(timings, "decode_ms") / 1000
    if completion_tokens < 2 or decode_s <= 0:
        return "–"
    return f"{(completion_tokens - 1) / decode_s:.1f} tokens/s"


def _sums(
    rows: tuple[tuple[str, tuple[str, ...]], ...], timings: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    for label, fields in rows:
        yield label, sum(_number(timings, field) for field in fields)


def _number(timings: Mapping[str, Any], field: str) -> float:
    return float(timings.get(field) or 0.0)


def _workers(timings: Mapping[str, Any]) -> str:
    decode = timings.get("decode_worker") or "?"
    prefill = timings.get("prefill_worker")
    return f"{prefill} → {decode}" if prefill else f"{decode} alone"


def _moved(timings: Mapping[str, Any]) -> str:
    num_bytes = _number(timings, "transfer_bytes")
    if not num_bytes:
        return "nothing to move"
    whole_ms = _number(timings, "transfer_ms")
    return f"{num_bytes / 2**20:.2f} MiB over {timings.get('connector')} in {whole_ms:.1f} ms"
