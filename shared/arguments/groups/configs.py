"""vLLM's groups VllmConfig and StructuredOutputsConfig, and what has no group."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Same,
    Spelled,
    json_object,
    renamed,
    switch,
    value,
)
from shared.arguments.groups.compiling import CHOSEN
from shared.arguments.groups.model import NO_MEDIA
from shared.arguments.values import (
    key_of_speculation,
    kv_events,
    profiler,
    reasoning,
    structured_outputs,
)

CONFIGS = (
    value("--reasoning-parser", "", Same()),
    value(
        "--reasoning-parser-plugin",
        "",
        Refused("a package names its parsers with the entry point baton.reasoning_parsers"),
    ),
    json_object(
        "--structured-outputs-config",
        Spelled("--structured-outputs-backend", structured_outputs, "backend, reasoning_parser"),
    ),
    json_object(
        "--reasoning-config",
        Spelled(
            "--reasoning-parser, --reasoning-marks",
            reasoning,
            "reasoning_parser, or reasoning_start_str and reasoning_end_str",
        ),
    ),
    json_object("--speculative-config", Same(), short="-sc"),
    value(
        "--spec-method", None, Spelled("--speculative-config.method", key_of_speculation("method"))
    ),
    value("--spec-model", None, Spelled("--speculative-config.model", key_of_speculation("model"))),
    value(
        "--spec-tokens",
        None,
        Spelled(
            "--speculative-config.num_speculative_tokens",
            key_of_speculation("num_speculative_tokens"),
        ),
    ),
    json_object("--watermark-config", Refused("Baton puts no watermark into answers")),
    json_object("--diffusion-config", Refused("models of diffusion are not served"), short="-dc"),
    json_object(
        "--kv-transfer-config",
        Refused(
            "roles are services here: baton up --prefill N --decode N; --connectors names what "
            "moves KV, --kv-offload-host-gib keeps it in host memory"
        ),
    ),
    json_object(
        "--kv-events-config",
        Spelled("--kv-events-endpoint, --kv-events-replay-endpoint, --kv-events-topic", kv_events),
    ),
    json_object("--ec-transfer-config", Refused(NO_MEDIA)),
    json_object("--ec-manager-config", Inert("there is no encoder")),
    json_object("--engram-config", Refused("Baton has no memory of n-grams")),
    json_object("--additional-config", Refused("there is no platform that could read it")),
    json_object("--aux-output-config", Refused("Baton returns tokens, text and logprobs")),
    json_object(
        "--profiler-config", Spelled("--profiler-dir", profiler, "profiler, torch_profiler_dir")
    ),
    value("--performance-mode", "balanced", Inert(CHOSEN)),
    json_object(
        "--weight-transfer-config", Refused("weights come from a folder: POST /update_weights")
    ),
    switch("--fail-on-environ-validation", Inert("a bad variable BATON_… always ends the start")),
    value("--shutdown-timeout", "0", renamed("--drain-grace-s")),
    switch(
        "--tokens-only", Refused("give --skip-tokenizer-init: all endpoints stay, and refuse texts")
    ),
)
