"""Run `baton plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from cli.errors import CommandError
from cli.plan.advice import advise
from cli.plan.live import read_live
from cli.plan.report import as_json, as_text
from cli.plan.workload import Request, read_workload, wave
from services.router.planning.base import Bounds
from services.router.planning.speed import Speed

if TYPE_CHECKING:
    from pathlib import Path

    from cli.plan.live import LiveCluster
    from cli.security.access import Secure
    from services.router.planning.base import Demand

#: How long a live cluster's demand is simulated.
LIVE_S = 300.0
#: A simulation is of at most this many requests: the first ones.
MAX_REQUESTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command is told. None: the live cluster's, or what a router begins with."""

    trace: Path | None
    router: str | None
    model: str
    key: str
    num_workers: int | None
    max_ttft_ms: float | None
    max_itl_ms: float | None
    faster: float
    num_blocks: int
    prompt_tokens_per_s: float | None
    step_ms: float | None
    sequence_ms: float | None
    kv_tokens: int | None
    json: bool


def run_plan(options: Options, secure: Secure | None) -> None:
    """Print the advice.

    Raises:
        CommandError: nothing says what is asked, or a file or a router cannot be read.
    """
    live = None
    if options.router is not None:
        live = read_live(options.router, model=options.model, key=options.key, secure=secure)
    num_workers = _num_workers(options, live)
    requests = _requests(options, live)
    speed = _speed(options, live)
    bounds = _bounds(options, live)
    advice = advise(requests[:MAX_REQUESTS], speed, bounds, num_workers)
    typer.echo(as_json(advice) if options.json else as_text(advice))


def _num_workers(options: Options, live: LiveCluster | None) -> int:
    found = options.num_workers
    if found is None:
        if live is None:
            raise CommandError("--workers is needed beside a trace: how many there are")
        found = live.counts.total
    if found < 2:
        message = f"{found} worker cannot be divided; at least 2 are needed"
        raise CommandError(message, advice="--workers 2 says what a second one would bring")
    return found


def _requests(options: Options, live: LiveCluster | None) -> list[Request]:
    if options.trace is not None:
        found = read_workload(options.trace, num_blocks=options.num_blocks)
    elif live is not None:
        found = _like(live.demand)
    else:
        raise CommandError("name a trace, or a router with --router URL")
    return [replace(each, at_s=each.at_s / options.faster) for each in found]


def _like(demand: Demand) -> list[Request]:
    if demand.requests_per_s <= 0:
        raise CommandError("no request has come lately: there is nothing to plan for")
    found = wave(
        low_per_s=demand.requests_per_s,
        high_per_s=demand.requests_per_s,
        period_s=LIVE_S,
        duration_s=LIVE_S,
        num_tokens=max(1, round(demand.prompt_tokens)),
        num_output_tokens=max(1, round(demand.output_tokens)),
    )
    if not found:
        raise CommandError("too few requests have come lately to plan for")
    num_held = round(demand.held_tokens)
    return [replace(each, num_held=min(num_held, each.num_tokens - 1)) for each in found]


def _speed(options: Options, live: LiveCluster | None) -> Speed:
    speed = Speed.prior() if live is None else live.speed
    each, per_token, per_pair = speed.prefill
    if options.prompt_tokens_per_s is not None:
        per_token = 1e6 / options.prompt_tokens_per_s
        if live is None:
            each = per_pair = 0.0
    step, per_sequence, per_thousand = speed.decode
    if options.step_ms is not None:
        step = options.step_ms
    if options.sequence_ms is not None:
        per_sequence, per_thousand = options.sequence_ms, 0.0
    return replace(
        speed,
        prefill=(each, per_token, per_pair),
        decode=(step, per_sequence, per_thousand),
        kv_tokens=options.kv_tokens or speed.kv_tokens,
    )


def _bounds(options: Options, live: LiveCluster | None) -> Bounds:
    bounds = Bounds() if live is None else live.bounds
    return Bounds(
        max_ttft_ms=options.max_ttft_ms or bounds.max_ttft_ms,
        max_itl_ms=options.max_itl_ms or bounds.max_itl_ms,
    )
