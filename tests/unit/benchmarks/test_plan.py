"""What flags mean, and that a wrong one is named before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.load.plan import Plan, make_plan
from benchmarks.load.settings import (
    Backend,
    DatasetName,
    DataSettings,
    LoadSettings,
    MeasureSettings,
    RampUp,
    RequestSettings,
    ResultSettings,
    ServerSettings,
    TrafficSettings,
)
from benchmarks.load.workload.arrivals import Ramp
from shared.errors import ConfigError

GROUPS = {
    "server": ServerSettings,
    "request": RequestSettings,
    "traffic": TrafficSettings,
    "data": DataSettings,
    "measure": MeasureSettings,
    "result": ResultSettings,
}


def plan(group: str = "server", **values: Any) -> Plan:
    groups: dict[str, Any] = {group: GROUPS[group](**values)}
    return make_plan(LoadSettings(**groups))


def test_the_backend_chooses_the_endpoint() -> None:
    assert (plan().endpoint, plan().chat) == ("/v1/completions", False)
    chat = plan(backend=Backend.OPENAI_CHAT)
    assert (chat.endpoint, chat.chat) == ("/v1/chat/completions", True)
    assert plan(endpoint="/x/chat/completions").chat


def test_random_prompts_ignore_the_end_of_text() -> None:
    assert plan().body == {"ignore_eos": True}
    assert plan("data", dataset_name=DatasetName.CUSTOM).body == {}


def test_extra_body_has_the_last_word() -> None:
    body = plan("request", temperature=0.5, extra_body='{"temperature": 0, "ignore_eos": false}')
    assert body.body == {"ignore_eos": False, "temperature": 0}


def test_objectives_percentiles_and_metadata() -> None:
    slos_ms = plan("measure", goodput=["ttft:200", "e2el:1.5"]).slos_ms
    assert slos_ms == {"ttft": 200, "e2el": 1.5}
    assert plan("measure", metric_percentiles="50,99.9").percentiles == (50, 99.9)
    assert plan("result", metadata=["tp=1", "note=a=b"]).metadata == {"tp": "1", "note": "a=b"}


def test_a_ramp() -> None:
    made = plan("traffic", ramp_up_strategy=RampUp.LINEAR, ramp_up_start_rps=1, ramp_up_end_rps=9)
    assert made.ramp == Ramp(strategy=RampUp.LINEAR, start_rps=1, end_rps=9)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("server", {"endpoint": "/v1/embeddings"}, "--endpoint"),
        ("request", {"extra_body": "{"}, "--extra-body: not JSON"),
        ("request", {"extra_body": "[]"}, "--extra-body: not a JSON object"),
        ("measure", {"goodput": ["ttft"]}, "--goodput: 'ttft' is not NAME:MILLISECONDS"),
        ("measure", {"goodput": ["itl:5"]}, "--goodput: 'itl' is none of ttft, tpot, e2el"),
        ("measure", {"goodput": ["ttft:-5"]}, "below 0"),
        ("measure", {"percentile_metrics": "ttft,latency"}, "--percentile-metrics: 'latency'"),
        ("measure", {"metric_percentiles": "p99"}, "--metric-percentiles"),
        ("measure", {"metric_percentiles": "101"}, "--metric-percentiles"),
        ("result", {"metadata": ["tp"]}, "--metadata: 'tp' is not KEY=VALUE"),
        ("traffic", {"request_rate": 0.0}, "--request-rate"),
        ("traffic", {"burstiness": 0.0}, "--burstiness"),
        ("traffic", {"ramp_up_start_rps": 1}, "need --ramp-up-strategy"),
        ("traffic", {"ramp_up_strategy": RampUp.LINEAR}, "needs --ramp-up-start-rps"),
        (
            "traffic",
            {"ramp_up_strategy": RampUp.LINEAR, "request_rate": 5.0},
            "--request-rate: a ramp-up sets the rate",
        ),
        (
            "traffic",
            {
                "ramp_up_strategy": RampUp.EXPONENTIAL,
                "ramp_up_start_rps": 0,
                "ramp_up_end_rps": 5,
            },
            "--ramp-up-start-rps: 0",
        ),
    ],
)
def test_a_wrong_value_names_its_flag(group: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(group, **values)
