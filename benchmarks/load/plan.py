"""Reads the values of settings that are small languages of their own, before anything is sent."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.load.asking.server import split_pair
from benchmarks.load.metrics import LATENCIES, SLO_NAMES
from benchmarks.load.settings import Backend, DatasetName, RampUp
from benchmarks.load.workload.arrivals import Ramp
from shared.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.load.settings import LoadSettings, RequestSettings, TrafficSettings

ENDPOINTS = {
    Backend.OPENAI: "/v1/completions",
    Backend.VLLM: "/v1/completions",
    Backend.OPENAI_CHAT: "/v1/chat/completions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings, understood."""

    endpoint: str
    chat: bool
    body: dict[str, Any]
    request_id_prefix: str
    ramp: Ramp | None
    latency_names: tuple[str, ...]
    percentiles: tuple[float, ...]
    slos_ms: dict[str, float]
    metadata: dict[str, str]


def make_plan(settings: LoadSettings) -> Plan:
    """Check the settings and return the plan of the run.

    Raises:
        ConfigError: a value makes no sense; the message names its flag.
    """
    server, measure = settings.server, settings.measure
    endpoint = server.endpoint or ENDPOINTS[server.backend]
    if not endpoint.endswith("completions"):
        raise ConfigError(f"--endpoint: {endpoint} is neither …/completions nor …/chat/completions")
    body = _body(settings.request)
    if settings.request.ignore_eos or settings.data.dataset_name is DatasetName.RANDOM:
        body = {"ignore_eos": True} | body
    names = tuple(name.strip() for name in measure.percentile_metrics.split(","))
    for name in names:
        if name not in LATENCIES:
            raise ConfigError(f"--percentile-metrics: {name!r} is none of {', '.join(LATENCIES)}")
    return Plan(
        endpoint=endpoint,
        chat=endpoint.endswith("/chat/completions"),
        body=body,
        request_id_prefix=settings.request.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-",
        ramp=_ramp(settings.traffic),
        latency_names=names,
        percentiles=_percentiles(measure.metric_percentiles),
        slos_ms=_slos(measure.goodput),
        metadata=dict(split_pair("--metadata", pair) for pair in settings.result.metadata),
    )


def _body(request: RequestSettings) -> dict[str, Any]:
    sampling = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
    }
    try:
        extra = json.loads(request.extra_body or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"--extra-body: not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ConfigError("--extra-body: not a JSON object")
    return {key: value for key, value in sampling.items() if value is not None} | extra


def _ramp(traffic: TrafficSettings) -> Ramp | None:
    if not traffic.request_rate > 0:
        raise ConfigError(f"--request-rate: {traffic.request_rate} is not above 0")
    if not traffic.burstiness > 0:
        raise ConfigError(f"--burstiness: {traffic.burstiness} is not above 0")
    if traffic.ramp_up_strategy is None:
        if traffic.ramp_up_start_rps is not None or traffic.ramp_up_end_rps is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return None
    start, end = traffic.ramp_up_start_rps, traffic.ramp_up_end_rps
    if not math.isinf(traffic.request_rate):
        raise ConfigError("--request-rate: a ramp-up sets the rate; leave it out")
    if start is None or end is None:
        raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if not 0 < start <= end:
        raise ConfigError(f"--ramp-up-start-rps: {start} is not between 1 and the end, {end}")
    return Ramp(strategy=RampUp(traffic.ramp_up_strategy), start_rps=start, end_rps=end)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles: {text!r} is no list of numbers") from error
    if not all(0 <= value <= 100 for value in values):
        raise ConfigError(f"--metric-percentiles: {text!r} leaves 0 to 100")
    return values


def _slos(pairs: list[str]) -> dict[str, float]:
    slos_ms = {}
    for pair in pairs:
        name, _, text = pair.partition(":")
        try:
            slos_ms[name] = float(text)
        except ValueError as error:
            raise ConfigError(f"--goodput: {pair!r} is not NAME:MILLISECONDS") from error
        if name not in SLO_NAMES:
            raise ConfigError(f"--goodput: {name!r} is none of {', '.join(SLO_NAMES)}")
        if not slos_ms[name] >= 0:
            raise ConfigError(f"--goodput: {pair!r} is below 0")
    return slos_ms
