"""Tracing is off unless the standard variables ask for it; spans carry the times they are given."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError
from shared.telemetry.trace_context import headers_in, metadata_in
from shared.telemetry.tracing import CLOSING_THREAD
from shared.telemetry.tracing_settings import is_wanted, open_tracer
from tests.fakes.processes.program import run_warm
from tests.fakes.servers.otlp_collector import OtlpCollector

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_environment_decides(environ: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environ) == wanted


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    ],
)
def test_what_is_not_there_is_said_at_the_start(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="OTEL_"):
        open_tracer("router", instance="r", environ=environ)


def test_nobody_pays_for_what_is_off(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import services.router.program, services.decode.servicer, services.prefill.servicer\n"
        "from shared.telemetry.tracing_settings import open_tracer\n"
        "assert open_tracer('router', instance='r', environ={}) is None\n"
        # (The Redis client imports the API and the metrics of OpenTelemetry where it finds them.)
        "ours = ('opentelemetry.sdk.trace', 'opentelemetry.exporter', 'shared.telemetry.tracing')\n"
        "loaded = [name for name in ours if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    exit_code, said = run_warm(code, tmp_path)
    assert exit_code == 0, said


async def test_spans_reach_a_collector_with_their_times_and_parents() -> None:
    collector = OtlpCollector()
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        tracer = open_tracer("router", instance="r", environ=environ)
    assert tracer is not None
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    began_s = time.monotonic() - 2
    span = tracer.start("ask", headers={"traceparent": parent}, began_s=began_s)
    span.stage("wait", began_s, began_s + 0.5, {"baton.n": 3})
    call = span.call("call")
    assert call.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    call.fail(ValueError("no"))
    call.end()
    span.end(began_s + 1)
    await tracer.close()
    by_name = {one.name: one for one in collector.trace(span.trace_id)}
    collector.stop()
    assert by_name.keys() == {"ask", "wait", "call"}
    assert by_name["ask"].parent_id == "b7ad6b7169203331"
    assert by_name["wait"].parent_id == by_name["call"].parent_id == by_name["ask"].span_id
    assert by_name["ask"].ended_s - by_name["ask"].began_s == pytest.approx(1, abs=1e-3)
    assert by_name["wait"].ended_s - by_name["wait"].began_s == pytest.approx(0.5, abs=1e-3)
    assert by_name["wait"].attributes == {"baton.n": 3}
    assert by_name["call"].is_error
    assert by_name["ask"].service == "baton-router"


async def test_a_collector_that_is_not_there_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.telemetry.tracing.CLOSE_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracer = open_tracer("decode", instance="d", environ={"OTEL_TRACES_EXPORTER": "otlp"})
    assert tracer is not None
    tracer.start("lost", headers={}).end()
    await tracer.close()
    # It gives up by itself, and no other test shall see it try again.
    for thread in threading.enumerate():
        if thread.name == CLOSING_THREAD:
            thread.join(20)
            assert not thread.is_alive()


def test_only_the_trace_s_headers_are_taken() -> None:
    pairs = [(b"traceparent", b"00-1"), (b"cookie", b"secret"), (b"tracestate", b"a=b")]
    assert headers_in(pairs) == {"traceparent": "00-1", "tracestate": "a=b"}
    assert metadata_in([("traceparent", "00-1"), ("tracestate", b"raw"), ("x", "y")]) == {
        "traceparent": "00-1"
    }
