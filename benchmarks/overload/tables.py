"""The numbers of a run, computed from its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.overload.watch import growth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.overload.results import BombResult, Phase, Result

HEADINGS = (
    "load", "requests/s", "goodput tok/s", "of peak", "accepted", "in time",
    "TTFT p50 / p99 ms", "refused", "refusal p50 / p99 ms", "failed", "queue p50 / max",
)  # fmt: skip


def goodput(phase: Phase, max_ttft_ms: float) -> float:
    """Output tokens per second of the requests whose first token came within the bound."""
    tokens = sum(r.num_tokens for r in phase.requests if r.accepted and r.ttft_ms <= max_ttft_ms)
    return tokens / phase.duration_s


def peak(result: Result) -> float:
    """Return the best goodput of the open-loop phases without a particular tenant."""
    return max(goodput(p, result.max_ttft_ms) for p in _loads(result))


def load_rows(result: Result) -> list[list[str]]:
    """One row per load."""
    best = peak(result)
    return [_row(phase, best, result.max_ttft_ms) for phase in _loads(result)]


def memory_rows(phase: Phase) -> list[list[str]]:
    """One row per process: MiB at the beginning and end, and how it grew after the warm-up."""
    rows = []
    for name in phase.samples[0].rss_mib if phase.samples else ():
        slope, share = growth(phase.samples, name)
        first, last = phase.samples[0].rss_mib[name], phase.samples[-1].rss_mib[name]
        cores = phase.samples[-1].cpu_s[name] / phase.duration_s
        rows.append(
            [name, f"{first:.0f}", f"{last:.0f}", f"{slope:+.2f}", f"{share:+.1%}", f"{cores:.2f}"]
        )
    return rows


def tenant_rows(result: Result, phase: Phase) -> list[list[str]]:
    """One row per tenant: what it offered, what it got, and what its weight says."""
    got = {
        name: sum(r.num_tokens for r in phase.requests if r.tenant == name and r.accepted)
        for name in result.weights
    }
    total, weights = sum(got.values()) or 1, sum(result.weights.values())
    rows = []
    for name, weight in result.weights.items():
        mine = [r for r in phase.requests if r.tenant == name]
        accepted = sum(r.accepted for r in mine)
        cells = [name, f"{weight:g}", str(len(mine)), str(accepted), str(got[name])]
        rows.append([*cells, f"{got[name] / total:.1%}", f"{weight / weights:.1%}"])
    return rows


def _loads(result: Result) -> list[Phase]:
    return [p for p in result.phases if p.name == "load"]


def _row(phase: Phase, best: float, max_ttft_ms: float) -> list[str]:
    accepted = [r for r in phase.requests if r.accepted]
    refused = [r.latency_ms for r in phase.requests if r.refused]
    ttfts = [r.ttft_ms for r in accepted]
    num_failed = len(phase.requests) - len(accepted) - len(refused)
    good = goodput(phase, max_ttft_ms)
    in_time = sum(ttft <= max_ttft_ms for ttft in ttfts) / len(ttfts) if ttfts else 0.0
    queue = [s.num_waiting for s in phase.samples] or [0]
    return [
        f"{phase.load:g} ×", f"{phase.requests_per_s:.1f}", f"{good:.0f}",
        f"{good / best:.0%}" if best else "–", str(len(accepted)), f"{in_time:.1%}", _spread(ttfts),
        str(len(refused)), _spread(refused), str(num_failed),
        f"{np.median(queue):.0f} / {max(queue)}",
    ]  # fmt: skip


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    middle, high = np.percentile(values, [50, 99])
    return f"{middle:.0f} / {high:.0f}"


BOMB_HEADINGS = (
    "asks for", "requests quiet / bombs", "TTFT p50 / p99 ms quiet", "with bombs", "p99 ratio",
    "ITL p50 / p99 ms quiet", "with bombs", "p99 ratio",
)  # fmt: skip


def bomb_rows(result: BombResult) -> list[list[str]]:
    """One row per kind of request of the other tenant."""
    rows = []
    for kind in result.parts[0].ttft_ms:
        ttft = {b: _pooled(result, kind, "ttft_ms", bombs=b) for b in (False, True)}
        itl = {b: _pooled(result, kind, "itl_ms", bombs=b) for b in (False, True)}
        row = [kind, f"{len(ttft[False])} / {len(ttft[True])}"]
        for values in (ttft, itl):
            row += [_fine(values[False]), _fine(values[True]), _ratio(values)]
        rows.append(row)
    return rows


def _pooled(result: BombResult, kind: str, name: str, *, bombs: bool) -> list[float]:
    parts = [part for part in result.parts if part.bombs == bombs]
    return [value for part in parts for value in getattr(part, name)[kind]]


def _fine(values: Sequence[float]) -> str:
    if not values:
        return "–"
    middle, high = np.percentile(values, [50, 99])
    return f"{middle:.1f} / {high:.1f}"


def _ratio(values: dict[bool, list[float]]) -> str:
    if not (values[False] and values[True]):
        return "–"
    return f"{np.percentile(values[True], 99) / np.percentile(values[False], 99):.2f}"
