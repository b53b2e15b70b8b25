"""The advice as text, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from services.router.planning.base import ATTAINMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.plan.advice import Advice, Expected


def as_json(advice: Advice) -> str:
    """Return all numbers."""
    return json.dumps(dataclasses.asdict(advice), indent=2)


def as_text(advice: Advice) -> str:
    """Return what people need."""
    return "\n".join(_lines(advice))


def _lines(advice: Advice) -> Iterator[str]:
    demand, best = advice.demand, advice.best
    yield (
        f"asked: {demand.requests_per_s:.2f} requests/s, prompts of {demand.prompt_tokens:.0f} "
        f"tokens ({demand.held_tokens:.0f} of them held), answers of {demand.output_tokens:.0f}"
    )
    for warning in advice.warnings:
        yield f"warning: {warning}"
    yield ""
    yield "prefill:decode   TTFT p50    p95 ms   ITL mean    p95 ms   meet the bounds   goodput/s"
    for each in advice.divisions:
        mark = "  <- best" if each == best else ""
        yield _row(each) + mark
    yield ""
    total = best.prefill + best.decode
    yield f"with these {total} workers use {best.prefill}:{best.decode} ({_words(best)})"
    yield f"one more prefill worker buys {_gain(best, advice.more_prefill)}"
    yield f"one more decode worker buys {_gain(best, advice.more_decode)}"
    if advice.enough is not None:
        enough = advice.enough
        yield (
            f"{enough.prefill + enough.decode} workers are enough: {enough.prefill}:{enough.decode}"
            f" ({_words(enough)})"
        )
    elif best.attainment < ATTAINMENT:
        yield f"not even {advice.most_tried} workers are enough for {ATTAINMENT:.0%} of requests"


def _row(each: Expected) -> str:
    return (
        f"{f'{each.prefill}:{each.decode}':>14}   {each.ttft_p50_ms:8.0f}  {each.ttft_p95_ms:8.0f}"
        f"   {each.itl_mean_ms:8.1f}  {each.itl_p95_ms:8.1f}   {each.attainment:15.1%}"
        f"   {each.goodput_per_s:9.2f}"
    )


def _words(each: Expected) -> str:
    return (
        f"TTFT p50 {each.ttft_p50_ms:.0f} and p95 {each.ttft_p95_ms:.0f} ms, ITL "
        f"{each.itl_mean_ms:.1f} ms, {each.attainment:.1%} meet the bounds: "
        f"{each.goodput_per_s:.2f}/s"
    )


def _gain(before: Expected, after: Expected) -> str:
    return (
        f"{after.goodput_per_s - before.goodput_per_s:+.2f} requests/s within the bounds, TTFT p95 "
        f"{after.ttft_p95_ms - before.ttft_p95_ms:+.0f} ms, ITL "
        f"{after.itl_mean_ms - before.itl_mean_ms:+.1f} ms"
    )
