"""vLLM's groups ObservabilityConfig and LoggingConfig, and its flags of logs."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Same,
    Spelled,
    json_object,
    switch,
    value,
    words,
)
from shared.arguments.values import lower, on_or_off

LOGS = "Baton's services log lines for people, or JSON: --log-format, --log-level"

OBSERVING = (
    value("--show-hidden-metrics-for-version", None, Inert("no metric is hidden")),
    value(
        "--otlp-traces-endpoint",
        None,
        Refused("set OTEL_EXPORTER_OTLP_ENDPOINT in the environment of all services"),
    ),
    words("--collect-detailed-traces", None, Inert("every trace has the steps of its workers")),
    value(
        "--per-request-spec-decode-metrics",
        "none",
        Refused("acceptance is counted for each worker, see docs/metrics.md"),
    ),
    switch("--kv-cache-metrics", Inert("blocks are always counted, see docs/metrics.md")),
    value("--kv-cache-metrics-sample", "0.01", Inert("all blocks are counted")),
    json_object("--custom-histogram-buckets", Refused("a metric's buckets are fixed")),
    switch("--cudagraph-metrics", Inert("recorded steps are always counted")),
    switch("--enable-layerwise-nvtx-tracing", Refused("steps have no marks for NVTX")),
    switch("--enable-mfu-metrics", Refused("Baton does not count a model's operations")),
    switch("--enable-logging-iteration-details", Refused("steps are in the metrics, not the log")),
    value("--jit-monitor-mode", "warn", Inert("kernels are compiled before a worker is ready")),
    switch("--jit-monitor-verbose", Inert("kernels are compiled before a worker is ready")),
    json_object("--logging-config", Refused(LOGS)),
    value("--log-level", "INFO", Spelled("--log-level", lower("--log-level"))),
    value("--log-config-file", None, Refused(LOGS)),
    switch("--disable-log-stats", Same()),
    switch("--aggregate-engine-logging", Inert("every worker logs by itself")),
    switch("--enable-log-requests", Spelled("--log-requests", on_or_off("--log-requests"))),
)
