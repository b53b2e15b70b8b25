"""What the offline benchmarks can be told. Names, defaults and meaning follow `vllm bench`.

Annotations are read at run time, so this module does without `from __future__ import annotations`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from benchmarks.load.settings import DataSettings, flag

ENGINE, LOAD, RESULT = "Engine", "Load", "Results"


class Backend(StrEnum):
    """How prompts reach the engine: as they are, or as one user message in the chat template."""

    VLLM = "vllm"
    VLLM_CHAT = "vllm-chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine. Every further flag is one of its arguments, as `baton serve` takes them."""

    model: Annotated[str | None, flag(ENGINE, "Folder, GGUF file or name on the hub.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What is kept."""

    output_json: Annotated[Path | None, flag(RESULT, "Write the results to this file.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """One batch, again and again."""

    input_len: Annotated[int, flag(LOAD, "Tokens of a prompt.", min=1)] = 32
    output_len: Annotated[int, flag(LOAD, "Tokens to generate.", min=1)] = 128
    batch_size: Annotated[int, flag(LOAD, "Prompts at a time.", min=1)] = 8
    n: Annotated[int, flag(LOAD, "Answers to a prompt.", "--n", min=1)] = 1
    use_beam_search: Annotated[bool, flag(LOAD, "Search with n beams.", "--use-beam-search")] = (
        False
    )
    num_iters_warmup: Annotated[int, flag(LOAD, "Batches before, not measured.", min=0)] = 10
    num_iters: Annotated[int, flag(LOAD, "Batches that are measured.", min=1)] = 30
    disable_detokenize: Annotated[bool, flag(LOAD, "Make no text.", "--disable-detokenize")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputLoad:
    """Many prompts, all known from the beginning."""

    backend: Annotated[Backend, flag(LOAD, "vllm-chat: in the chat template.")] = Backend.VLLM
    num_prompts: Annotated[int, flag(LOAD, "Number of prompts.", min=1)] = 1000
    num_warmups: Annotated[int, flag(LOAD, "Prompts before, not measured.", min=0)] = 0
    n: Annotated[int, flag(LOAD, "Answers to a prompt.", "--n", min=1)] = 1
    seed: Annotated[int, flag(LOAD, "Of the prompts.", min=0)] = 0
    disable_detokenize: Annotated[bool, flag(LOAD, "Make no text.", "--disable-detokenize")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """Starts in new processes."""

    num_iters_cold: Annotated[int, flag(LOAD, "Starts with empty caches.", min=0)] = 3
    num_iters_warm: Annotated[int, flag(LOAD, "Starts with what a start left.", min=0)] = 3
    num_iters_warmup: Annotated[int, flag(LOAD, "Warm starts before, not measured.", min=0)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """All groups of `baton bench latency`."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    output: OutputSettings = field(default_factory=OutputSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputSettings:
    """All groups of `baton bench throughput`."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    load: ThroughputLoad = field(default_factory=ThroughputLoad)
    data: DataSettings = field(default_factory=DataSettings)
    output: OutputSettings = field(default_factory=OutputSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSettings:
    """All groups of `baton bench startup`."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    starts: StartSettings = field(default_factory=StartSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
