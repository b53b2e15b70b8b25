"""What operators see of a cluster: one trace per request, metrics as documented, lines with ids."""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.v1 import common_pb2, router_pb2
from scripts.e2e.spans import STAGES, spans_under
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.observability.prometheus import Prometheus
from tests.e2e.observability.vllm_dashboards import queries
from tests.e2e.processes import Cluster
from tests.fakes.pages.metrics_table import documented, exposed
from tests.fakes.servers.loopback import LOOPBACK6
from tests.fakes.servers.otlp_collector import ExportedSpan, OtlpCollector
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPANS = spans_under("text_completion tiny")
UNEXPLAINED = 0.05
NUM_TOKENS = 250
#: Grafana's `$__rate_interval`, here.
WINDOW = "20s"
PROMETHEUS_TIMEOUT_S = 30.0
#: The samples that the dashboard in vLLM's examples queries, by `model_name`.
DASHBOARD = {
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    *(
        f"vllm:{name}_seconds_{suffix}"
        for name in ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
        for suffix in ("bucket", "sum", "count")
    ),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster that exports its traces to `collector`, and where its logs are."""

    cluster: Cluster
    collector: OtlpCollector
    folder: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Of a process's log."""
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def address(self, name: str) -> str:
        """Host and port of a process's metrics."""
        if name == "router":
            return self.cluster.url.removeprefix("http://")
        argv = self.cluster.workers[name].argv
        return self.cluster.at(argv[argv.index("--metrics-port") + 1])

    def metrics(self, name: str) -> str:
        """Of a process, as Prometheus reads them."""
        with urllib.request.urlopen(f"http://{self.address(name)}/metrics", timeout=10) as response:
            return str(response.read().decode())


@pytest.fixture(scope="module")
def observed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A router, a prefill and a decode worker, which reach each other by IPv6."""
    folder = tmp_path_factory.mktemp("observed")
    collector = OtlpCollector()
    flags = ("--log-format", "json", "--metrics-names", "vllm")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        cluster = Cluster(
            checkpoint, folder, router_flags=(*flags, "--log-requests"), host=LOOPBACK6
        )
        try:
            for role in ("prefill", "decode"):
                more = ("--local-prefill-threshold", "0") if role == "decode" else ()
                cluster.add_worker(
                    role, f"{role}-0", *ENGINE_FLAGS, *flags, "--connectors", "zmq",
                    "--metrics-port", str(free_port()), "--enable-lora", "--core-lease", "auto",
                    "--num-threads", "1", *more,
                )  # fmt: skip
            cluster.wait_ready()
            yield Observed(cluster, collector, folder)
        finally:
            cluster.stop()
            collector.stop()


def complete(
    observed: Observed, *, num_tokens: int = NUM_TOKENS, sampled: bool = True, seed: int = 0
) -> tuple[str, float, float]:
    """One completion over HTTP in a trace of the client's; the trace's id, and when it was asked
    and had its answer.
    """
    trace_id = secrets.token_hex(16)
    traceparent = f"00-{trace_id}-{secrets.token_hex(8)}-{'01' if sampled else '00'}"
    body = {
        "model": "tiny", "prompt": prompt_of(200, seed), "max_tokens": num_tokens,
        "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{observed.cluster.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "traceparent": traceparent, "x-request-id": trace_id},
    )
    began_s = time.time()
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.read().rstrip().endswith(b"[DONE]")
    return trace_id, began_s, time.time()


def test_a_request_is_one_trace_over_all_processes(observed: Observed) -> None:
    trace_id, _, _ = complete(observed, num_tokens=5)
    spans = observed.collector.wait_for(trace_id, *SPANS)
    by_name = {span.name: span for span in spans}
    by_id = {span.span_id: span.name for span in spans}
    assert {name: by_id.get(span.parent_id) for name, span in by_name.items()} == SPANS
    assert len(spans) == len(SPANS)
    assert {span.service for span in spans} == {"baton-router", "baton-decode", "baton-prefill"}
    root = by_name["text_completion tiny"].attributes
    assert root["gen_ai.operation.name"] == "text_completion"
    assert root["gen_ai.request.model"] == "tiny"
    assert root["gen_ai.request.max_tokens"] == root["gen_ai.usage.output_tokens"] == 5
    assert root["gen_ai.usage.input_tokens"] == 200
    assert root["gen_ai.response.finish_reasons"] == ["length"]
    assert root["baton.connector"] == "zmq"
    assert by_name["decode.transfer"].attributes["baton.transfer_bytes"] > 0
    assert "first_token" in by_name["text_completion tiny"].events


def test_the_stages_add_up_to_what_the_client_waited(observed: Observed) -> None:
    shares = []
    # What else runs on this machine may come between the processes, but hardly every time.
    for seed in range(1, 6):
        trace_id, began_s, ended_s = complete(observed, seed=seed)
        stages = [s for s in observed.collector.wait_for(trace_id, *SPANS) if s.name in STAGES]
        explained_s = covered_s(stages, began_s, ended_s)
        shares.append(explained_s / (ended_s - began_s))
        if shares[-1] >= 1 - UNEXPLAINED:
            return
    raise AssertionError(f"the stages explain only {shares} of the client's time")


def covered_s(spans: list[ExportedSpan], began_s: float, ended_s: float) -> float:
    """Seconds of the interval in which at least one of the spans was open."""
    total_s, reached_s = 0.0, began_s
    for span in sorted(spans, key=lambda span: span.began_s):
        until_s = min(span.ended_s, ended_s)
        total_s += max(0.0, until_s - max(span.began_s, reached_s))
        reached_s = max(reached_s, until_s)
    return total_s


def test_who_is_not_sampled_leaves_no_span(observed: Observed) -> None:
    unseen, _, _ = complete(observed, num_tokens=2, sampled=False)
    seen, _, _ = complete(observed, num_tokens=2)
    observed.collector.wait_for(seen, *SPANS)
    assert observed.collector.trace(unseen) == []


def test_a_grpc_client_names_its_trace_in_the_metadata(observed: Observed) -> None:
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt_of(40))),
        params=router_pb2.GenerationParams(max_tokens=3, ignore_eos=True),
    )
    metadata = (("traceparent", f"00-{trace_id}-{parent_id}-01"),)
    list(observed.cluster.router_stub().Generate(request, timeout=60, metadata=metadata))
    spans = observed.collector.wait_for(trace_id, "text_completion tiny", "prefill", "decode")
    [root] = [span for span in spans if span.name == "text_completion tiny"]
    assert root.parent_id == parent_id


@pytest.mark.parametrize("name", ["router", "prefill-0", "decode-0"])
def test_metrics_are_those_of_the_documentation(observed: Observed, name: str) -> None:
    complete(observed, num_tokens=4, seed=9)
    role = name.removesuffix("-0")
    families = exposed(observed.metrics(name))
    found = {n: family for n, family in families.items() if not n.startswith("vllm:")}
    sections = ["Every process", "Router"]
    if role != "router":
        sections = [
            "Every process",
            "Every worker",
            "Worker with --enable-lora",
            "Worker with --core-lease",
            "Worker that writes answers",
            "Worker that computes prompts for others",
        ]
    expected = documented(*sections)
    assert {n: kind for n, (kind, _) in found.items()} == {n: r.kind for n, r in expected.items()}
    labels = {n: found for n, (_, found) in found.items() if found is not None}
    assert labels == {n: expected[n].labels for n in labels}


def test_a_prompt_has_the_cores_of_the_worker_that_waits_for_it(observed: Observed) -> None:
    complete(observed, num_tokens=1, seed=30)
    samples = {
        (sample.name, sample.labels.get("kind")): sample.value
        for family in text_string_to_metric_families(observed.metrics("prefill-0"))
        for sample in family.samples
    }
    assert samples["baton_cores", "own"] == 1
    if len(os.sched_getaffinity(0)) > 1:
        assert samples["baton_borrowed_core_seconds_total", None] > 0


def test_every_query_of_vllm_s_dashboards_returns_data(observed: Observed, tmp_path: Path) -> None:
    targets = [observed.address(name) for name in ("router", "prefill-0", "decode-0")]
    waiting = list(queries("tiny", WINDOW))
    with Prometheus(targets, tmp_path / "prometheus") as prometheus:
        deadline_s = time.monotonic() + PROMETHEUS_TIMEOUT_S
        for seed in itertools.count():
            # A rate is of what happens while Prometheus looks. Each prompt is asked twice.
            complete(observed, num_tokens=NUM_TOKENS, seed=100 + seed // 2 % 20)
            # The first one without data says whether it is worth asking for the others.
            while waiting and has_data(prometheus.values(waiting[0])):
                del waiting[0]
            if not waiting or time.monotonic() > deadline_s:
                break
        assert not waiting, "\n".join((*waiting[:1], *prometheus.errors()))


def has_data(values: list[float]) -> bool:
    """Whether a panel would show something."""
    return any(not math.isnan(value) for value in values)


def test_vllm_s_dashboard_finds_its_metrics(observed: Observed) -> None:
    complete(observed, num_tokens=4, seed=12)
    samples = [
        sample
        for name in ("router", "prefill-0", "decode-0")
        for family in text_string_to_metric_families(observed.metrics(name))
        for sample in family.samples
        if sample.labels.get("model_name") == "tiny"
    ]
    found = {sample.name for sample in samples}
    assert found >= DASHBOARD
    counted = [sample.value for sample in samples if sample.name == "vllm:generation_tokens_total"]
    assert len(counted) == 1, "a sum over all processes counts a token twice"
    reasons = {
        s.labels["finished_reason"] for s in samples if s.name == "vllm:request_success_total"
    }
    assert reasons == {"length"}
    used = {s.labels["engine"] for s in samples if s.name == "vllm:kv_cache_usage_perc"}
    assert used == {"prefill-0", "decode-0"}


def test_lines_about_a_request_have_its_ids(observed: Observed) -> None:
    trace_id, _, _ = complete(observed, num_tokens=2, seed=10)
    lines = observed.lines("router")
    assert {line["service"] for line in lines} == {"router"}
    [ended] = [line for line in lines if line.get("request_id") == trace_id]
    assert ended["event"] == "request_ended"
    assert ended["trace_id"] == trace_id
    assert (ended["num_prompt_tokens"], ended["num_output_tokens"]) == (200, 2)


def test_a_worker_s_lines_have_the_ids_too(observed: Observed) -> None:
    """The last one here: the prefill worker is gone afterwards."""
    observed.cluster.workers["prefill-0"].kill()
    trace_id, _, _ = complete(observed, num_tokens=2, seed=11)
    failed = [line for line in observed.lines("decode-0") if line["event"] == "prefill_failed"]
    assert trace_id in {line["trace_id"] for line in failed}
    assert all(trace_id in line["request_id"] for line in failed if line["trace_id"] == trace_id)
    spans = observed.collector.wait_for(trace_id, "text_completion tiny", "decode.hand_off")
    assert [span.is_error for span in spans if span.name == "decode.hand_off"] == [True]
