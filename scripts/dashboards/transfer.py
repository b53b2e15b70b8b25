"""KV blocks between workers."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Page, Panel, Row
from scripts.dashboards.queries import quantiles, rate, times

_IN = 'direction="inbound"'

TRANSFER = Page(
    uid="baton-transfer",
    title="Baton: transfer",
    help="KV blocks between workers.",
    rows=(
        Row(
            title="Moved",
            panels=(
                Panel(
                    title="Bytes per second",
                    unit="Bps",
                    is_stacked=True,
                    lines=(
                        Line(
                            rate("baton_kv_transfer_bytes_total", "connector", _IN), "{{connector}}"
                        ),
                    ),
                ),
                Panel(
                    title="Transfers per second",
                    is_stacked=True,
                    lines=(
                        Line(
                            rate("baton_kv_transfers_total", "connector, outcome", _IN),
                            "{{connector}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    title="Open now",
                    lines=(
                        Line(
                            "sum by (component, instance) (baton_kv_transfers_open)",
                            "{{component}} {{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Time",
            panels=(
                times("Per transfer", "baton_kv_transfer_time_seconds", _IN),
                Panel(
                    title="What a transfer costs its request",
                    unit="ms",
                    help="From the first token until the last block: what computing does not hide.",
                    lines=quantiles("baton_transfer_exposed_milliseconds"),
                ),
                Panel(
                    title="Size", unit="bytes", lines=quantiles("baton_kv_transfer_size_bytes", _IN)
                ),
            ),
        ),
        Row(
            title="What went wrong",
            panels=(
                Panel(
                    title="Hand-off attempts per second",
                    is_stacked=True,
                    lines=(Line(rate("baton_hand_off_attempts_total", "outcome"), "{{outcome}}"),),
                ),
                Panel(
                    title="Where prompts are computed",
                    unit="reqps",
                    is_stacked=True,
                    lines=(Line(rate("baton_prefill_place_total", "place"), "{{place}}"),),
                ),
                Panel(
                    title="Refused frames, peers left alone",
                    lines=(
                        Line(rate("baton_kv_transfer_refusals_total"), "frames per second"),
                        Line("sum(baton_peers_left_alone) or vector(0)", "peers"),
                    ),
                ),
            ),
        ),
    ),
)
