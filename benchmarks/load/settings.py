"""What a run can be told. Names, defaults and meaning follow `vllm bench serve`.

Each group is one dataclass; `options.py` turns their fields into flags. Annotations are read at
run time, so this module does without `from __future__ import annotations`.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


def flag(panel: str, help: str, *names: str, **extra: Any) -> Any:
    """A flag of the command line, under `panel` in `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **extra)


class Backend(StrEnum):
    """Which API is spoken. `vllm` is another word for `openai`."""

    OPENAI = "openai"
    VLLM = "vllm"
    OPENAI_CHAT = "openai-chat"


class DatasetName(StrEnum):
    """Where prompts come from."""

    RANDOM = "random"
    PREFIX_REPETITION = "prefix_repetition"
    CUSTOM = "custom"
    SHAREGPT = "sharegpt"
    SONNET = "sonnet"


class RampUp(StrEnum):
    """How the rate grows from the first request to the last."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


SERVER, REQUEST, LOAD, DATA = "Server", "Request", "Load", "Dataset"
MEASURE, RESULT = "Measures", "Results"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Whom to ask."""

    backend: Annotated[Backend, flag(SERVER, "API to speak.")] = Backend.OPENAI
    base_url: Annotated[str | None, flag(SERVER, "Instead of --host and --port.")] = None
    host: Annotated[str, flag(SERVER, "Host of the server.")] = "127.0.0.1"
    port: Annotated[int, flag(SERVER, "Port of the server.")] = 8000
    endpoint: Annotated[str | None, flag(SERVER, "Path; by default that of --backend.")] = None
    model: Annotated[str | None, flag(SERVER, "By default the first of /v1/models.")] = None
    served_model_name: Annotated[
        str | None, flag(SERVER, "Name of the model in requests, if not --model.")
    ] = None
    header: Annotated[
        list[str], flag(SERVER, "Headers of every request.", metavar="KEY=VALUE…")
    ] = field(default_factory=list)
    api_key: Annotated[str | None, flag(SERVER, "Bearer token.", envvar="OPENAI_API_KEY")] = None
    ready_check_timeout_sec: Annotated[
        int, flag(SERVER, "Wait so long for the server, then send a test request. 0: neither.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What every request carries beside its prompt."""

    ignore_eos: Annotated[
        bool, flag(REQUEST, "Generate to the full length. Always on for random.", "--ignore-eos")
    ] = False
    temperature: Annotated[float | None, flag(REQUEST, "Unset: the server decides.")] = None
    top_p: Annotated[float | None, flag(REQUEST, "Nucleus sampling.")] = None
    top_k: Annotated[int | None, flag(REQUEST, "Sample among the k likeliest.")] = None
    extra_body: Annotated[str | None, flag(REQUEST, "JSON object merged into the body.")] = None
    request_id_prefix: Annotated[
        str | None, flag(REQUEST, "Of x-request-id; by default bench-<random>-.")
    ] = None
    request_timeout_sec: Annotated[float, flag(REQUEST, "A request that takes longer failed.")] = (
        6 * 60 * 60.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """How many requests, and when."""

    num_prompts: Annotated[int, flag(LOAD, "Number of requests.", min=1)] = 1000
    request_rate: Annotated[float, flag(LOAD, "Requests per second; inf: all at once.")] = math.inf
    burstiness: Annotated[
        float, flag(LOAD, "Shape of the gamma gaps: 1 Poisson, <1 burstier, inf constant.")
    ] = 1.0
    max_concurrency: Annotated[
        int | None, flag(LOAD, "More than this wait in the client.", min=1)
    ] = None
    ramp_up_strategy: Annotated[RampUp | None, flag(LOAD, "Instead of --request-rate.")] = None
    ramp_up_start_rps: Annotated[int | None, flag(LOAD, "Rate of the first request.")] = None
    ramp_up_end_rps: Annotated[int | None, flag(LOAD, "Rate of the last request.")] = None
    num_warmups: Annotated[int, flag(LOAD, "Requests sent before, not measured.", min=0)] = 0
    seed: Annotated[int, flag(LOAD, "Of arrivals and prompts.", min=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """What is asked."""

    dataset_name: Annotated[DatasetName, flag(DATA, "Source of prompts.")] = DatasetName.RANDOM
    dataset_path: Annotated[
        Path | None,
        flag(
            DATA,
            "custom: JSON lines with prompt (and output_tokens); sharegpt: JSON of conversations; "
            "sonnet: a text of many lines.",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None, flag(DATA, "tokenizer.json, or its folder; by default the model's folder.")
    ] = None
    vocab_size: Annotated[
        int | None, flag(DATA, "Token ids are below this, where there is no tokenizer.", min=1)
    ] = None
    input_len: Annotated[int | None, flag(DATA, "Overrides --random-input-len.")] = None
    output_len: Annotated[int | None, flag(DATA, "Overrides every …-output-len.")] = None
    random_input_len: Annotated[int, flag(DATA, "Tokens after the prefix.", min=1)] = 1024
    random_output_len: Annotated[int, flag(DATA, "Tokens to generate.", min=1)] = 128
    random_range_ratio: Annotated[
        float, flag(DATA, "Lengths are uniform in [len·(1-r), len·(1+r)].")
    ] = 0.0
    random_prefix_len: Annotated[int, flag(DATA, "Tokens that all prompts share.", min=0)] = 0
    prefix_repetition_prefix_len: Annotated[int, flag(DATA, "Tokens per prefix.", min=0)] = 256
    prefix_repetition_suffix_len: Annotated[int, flag(DATA, "Tokens after it.", min=1)] = 256
    prefix_repetition_num_prefixes: Annotated[int, flag(DATA, "Prefixes.", min=1)] = 10
    prefix_repetition_output_len: Annotated[int, flag(DATA, "Tokens to generate.", min=1)] = 128
    custom_output_len: Annotated[int, flag(DATA, "Where a line does not say.", min=1)] = 256
    sharegpt_output_len: Annotated[
        int | None, flag(DATA, "Instead of the length of the conversation's answer.", min=1)
    ] = None
    sonnet_input_len: Annotated[int, flag(DATA, "About so many tokens per prompt.", min=1)] = 550
    sonnet_output_len: Annotated[int, flag(DATA, "Tokens to generate.", min=1)] = 150
    sonnet_prefix_len: Annotated[int, flag(DATA, "Of these, shared by all.", min=0)] = 200
    disable_shuffle: Annotated[
        bool, flag(DATA, "Keep the order of a file, and of prefixes.", "--disable-shuffle")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """What is computed."""

    percentile_metrics: Annotated[str, flag(MEASURE, "Latencies to report.")] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[str, flag(MEASURE, "Percentiles to report.")] = "99"
    goodput: Annotated[
        list[str], flag(MEASURE, "Objectives in ms: ttft, tpot, e2el.", metavar="NAME:MS…")
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSettings:
    """What is kept."""

    save_result: Annotated[bool, flag(RESULT, "Write a JSON file.", "--save-result")] = False
    save_detailed: Annotated[
        bool, flag(RESULT, "With every request's timings.", "--save-detailed")
    ] = False
    append_result: Annotated[
        bool, flag(RESULT, "Add a line to the file, if it exists.", "--append-result")
    ] = False
    result_dir: Annotated[Path | None, flag(RESULT, "By default the current folder.")] = None
    result_filename: Annotated[
        str | None, flag(RESULT, "By default {label}-{rate}qps-{model}-{time}.json.")
    ] = None
    metadata: Annotated[list[str], flag(RESULT, "Kept in the file.", metavar="KEY=VALUE…")] = field(
        default_factory=list
    )
    label: Annotated[str | None, flag(RESULT, "By default the backend.")] = None
    plot: Annotated[Path | None, flag(RESULT, "Picture of latencies and throughput.")] = None
    disable_progress: Annotated[
        bool, flag(RESULT, "No progress bar.", "--disable-progress", "--disable-tqdm")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """All groups."""

    server: ServerSettings = field(default_factory=ServerSettings)
    request: RequestSettings = field(default_factory=RequestSettings)
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    data: DataSettings = field(default_factory=DataSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    result: ResultSettings = field(default_factory=ResultSettings)
