"""The JSON of a run. Keys and file name are those of `vllm bench serve`, whose tools read it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from benchmarks.load.metrics import Summary
    from benchmarks.load.outcome import Outcome
    from benchmarks.load.plan import Plan
    from benchmarks.load.settings import LoadSettings, ResultSettings


def describe_run(
    settings: LoadSettings, plan: Plan, *, model: str, now: datetime
) -> dict[str, Any]:
    """What was asked for."""
    traffic = settings.traffic
    tokenizer = settings.data.tokenizer
    described = {
        "date": _stamp(now),
        "endpoint_type": str(settings.server.backend),
        "backend": str(settings.server.backend),
        "label": settings.result.label,
        "model_id": settings.server.model or model,
        "tokenizer_id": str(tokenizer) if tokenizer else None,
        "num_prompts": traffic.num_prompts,
        **plan.metadata,
        "request_rate": "inf" if math.isinf(traffic.request_rate) else traffic.request_rate,
        # JSON has no infinity.
        "burstiness": "inf" if math.isinf(traffic.burstiness) else traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }
    if plan.ramp:
        described |= {
            "ramp_up_strategy": str(plan.ramp.strategy),
            "ramp_up_start_rps": plan.ramp.start_rps,
            "ramp_up_end_rps": plan.ramp.end_rps,
        }
    return described


def describe_summary(summary: Summary, latency_names: Sequence[str]) -> dict[str, Any]:
    """What came out, without the single requests."""
    described: dict[str, Any] = {
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
        "max_dispatch_lag_ms": summary.max_lag_ms,
    }
    for name in latency_names:
        latency = summary.latencies[name]
        described[f"mean_{name}_ms"] = latency.mean_ms
        described[f"median_{name}_ms"] = latency.median_ms
        described[f"std_{name}_ms"] = latency.std_ms
        for percentile, value_ms in latency.percentiles_ms.items():
            described[f"p{percentile:g}_{name}_ms"] = value_ms
    return described


def describe_requests(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One list per quantity, in seconds, in the order of sending."""
    return {
        "input_lens": [outcome.prompt_len for outcome in outcomes],
        "output_lens": [outcome.output_len if outcome.success else 0 for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.itls_s for outcome in outcomes],
        "latencies": [outcome.latency_s for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "queue_times": [outcome.client_queue_s for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def result_path(settings: LoadSettings, *, model: str, now: datetime) -> Path:
    """Where the result goes."""
    traffic, result = settings.traffic, settings.result
    rate = f"{traffic.request_rate}qps"
    if traffic.ramp_up_strategy:
        start, end = traffic.ramp_up_start_rps, traffic.ramp_up_end_rps
        rate = f"ramp-up-{traffic.ramp_up_strategy}-{start}qps-{end}qps"
    if traffic.max_concurrency is not None:
        rate += f"-concurrency{traffic.max_concurrency}"
    label = result.label or str(settings.server.backend)
    base = (settings.server.model or model).rstrip("/").rsplit("/", 1)[-1]
    name = result.result_filename or f"{label}-{rate}-{base}-{_stamp(now)}.json"
    return (result.result_dir or Path()) / name


def save_result(content: dict[str, Any], path: Path, settings: ResultSettings) -> None:
    """Write the file, or add a line to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if settings.append_result else "w", encoding="utf-8") as file:
        if settings.append_result and file.tell():
            file.write("\n")
        json.dump(content, file)


def _stamp(now: datetime) -> str:
    return now.strftime("%Y%m%d-%H%M%S")
