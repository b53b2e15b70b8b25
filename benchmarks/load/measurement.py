"""One whole measurement: find the server, make the load, warm up, run, read the counters."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.load.asking.client import CompletionClient
from benchmarks.load.asking.server import ServedModel, find_model, open_http
from benchmarks.load.asking.speculation import compare_speculation, read_speculation
from benchmarks.load.report.terminal import RunProgress
from benchmarks.load.runner import Run, run_open_loop, warm_up
from benchmarks.load.workload.arrivals import Arrival, rate_changes, schedule
from benchmarks.load.workload.datasets import load_samples
from benchmarks.load.workload.vocabulary import Vocabulary, load_vocabulary
from shared.errors import UnavailableError

if TYPE_CHECKING:
    import httpx
    from rich.console import Console

    from benchmarks.load.plan import Plan
    from benchmarks.load.settings import LoadSettings
    from benchmarks.load.workload.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run, and what the server says about it. `extras` go into the result as they are."""

    model: str
    run: Run
    extras: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All that is sent, made before the first request."""

    samples: list[Sample]
    warmups: list[Sample]
    arrivals: list[Arrival]


async def measure(settings: LoadSettings, plan: Plan, console: Console) -> Measurement:
    """Run the load once; return the measurement.

    Raises:
        UnavailableError: no server, or it fails the test request or a warm-up.
        ConfigError: the dataset cannot be made from the settings.
    """
    server, traffic = settings.server, settings.traffic
    async with open_http(server) as http:
        model = await find_model(http, server, timeout_s=server.ready_check_timeout_sec)
        vocabulary = load_vocabulary(
            settings.data.tokenizer, vocab_size=settings.data.vocab_size, model_root=model.root
        )
        load = make_load(settings, plan, vocabulary)
        client = _client(http, settings, plan, model)
        await _prepare(client, settings, load)
        # Collecting the prompts again and again would only pause the clock of every request.
        is_frozen = gc.get_freeze_count() > 0
        gc.collect()
        gc.freeze()
        before = await read_speculation(http)
        quiet = settings.result.disable_progress
        with RunProgress(console, traffic.num_prompts, disable=quiet) as progress:
            run = await run_open_loop(
                client,
                load.samples,
                load.arrivals,
                max_concurrency=traffic.max_concurrency,
                on_done=progress.advance,
            )
        if not is_frozen:  # what our caller has frozen stays so
            gc.unfreeze()
        extras = compare_speculation(before, await read_speculation(http))
    if plan.ramp:
        extras["rps_change_events"] = rate_changes(load.arrivals, plan.ramp, run.started)
    _count_missing(run, vocabulary)
    return Measurement(model=model.name, run=run, extras=extras)


def make_load(settings: LoadSettings, plan: Plan, vocabulary: Vocabulary | None) -> Load:
    """Prompts and arrivals by the seed.

    Warm-ups are other prompts: the same ones would leave their blocks in the prefix cache.
    """
    traffic = settings.traffic
    seeds = np.random.SeedSequence(traffic.seed).spawn(3)
    prompt_rng, warmup_rng, arrival_rng = (np.random.default_rng(seed) for seed in seeds)
    num_warmups = max(traffic.num_warmups, int(settings.server.ready_check_timeout_sec > 0))
    arrivals = schedule(
        traffic.num_prompts,
        request_rate=traffic.request_rate,
        burstiness=traffic.burstiness,
        rng=arrival_rng,
        ramp=plan.ramp,
    )
    samples, warmups = (
        load_samples(settings.data, num, vocabulary=vocabulary, as_text=plan.chat, rng=rng)
        for num, rng in ((traffic.num_prompts, prompt_rng), (num_warmups, warmup_rng))
    )
    return Load(samples=samples, warmups=warmups, arrivals=arrivals)


def _client(
    http: httpx.AsyncClient, settings: LoadSettings, plan: Plan, model: ServedModel
) -> CompletionClient:
    return CompletionClient(
        http,
        endpoint=plan.endpoint,
        chat=plan.chat,
        body={"model": model.name} | plan.body,
        request_id_prefix=plan.request_id_prefix,
        timeout_s=settings.request.request_timeout_sec,
    )


async def _prepare(client: CompletionClient, settings: LoadSettings, load: Load) -> None:
    if settings.server.ready_check_timeout_sec > 0:
        error = await warm_up(client, load.warmups[:1], max_concurrency=1)
        if error:
            raise UnavailableError(f"the server is up, but the test request failed: {error}")
    warmups = load.warmups[: settings.traffic.num_warmups]
    error = await warm_up(client, warmups, max_concurrency=settings.traffic.max_concurrency)
    if error:
        raise UnavailableError(f"a warm-up request failed, nothing was measured: {error}")


def _count_missing(run: Run, vocabulary: Vocabulary | None) -> None:
    """Where the server reported no usage: tokens of the text, or else chunks."""
    for outcome in run.outcomes:
        if outcome.success and not outcome.output_len:
            counted = vocabulary.count(outcome.text) if vocabulary else None
            outcome.output_len = counted or outcome.num_chunks
