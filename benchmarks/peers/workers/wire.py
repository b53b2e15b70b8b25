"""What a measured process and its parent say to each other: one JSON object per line.

Times are taken in the measured process, so that the pipe is not part of any of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class OfflineEngine(Protocol):
    """An engine in this process. Greedy; end tokens are ignored."""

    def one(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Answer one prompt; seconds from its submission to each of the tokens."""

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Answer all prompts, submitted together; seconds until the last token."""

    def describe(self) -> dict[str, Any]:
        """Version and whatever else a reader of the result must know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How to run an engine."""

    model: str
    threads: int
    dtype: str
    quantization: str | None
    max_model_len: int
    kv_cache_bytes: int
    max_num_seqs: int


class UnavailableHereError(Exception):
    """This engine cannot do what was asked for. The message is for the report."""


def serve(make_engine: Callable[[WorkerOptions], OfflineEngine]) -> None:
    """Make the engine and answer until the parent closes the pipe."""
    # Libraries print what they like; the pipe is ours alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    options, cores = _parse(sys.argv[1:])
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        engine = make_engine(options)
    except (UnavailableHereError, ImportError) as error:
        _say(answers, {"unavailable": str(error)})
        return
    _say(answers, {"ready": engine.describe()})
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, _answer(engine, request))


def _answer(engine: OfflineEngine, request: dict[str, Any]) -> dict[str, Any]:
    num_tokens = int(request["num_tokens"])
    if request["op"] == "one":
        times_s = engine.one(request["prompts"][0], num_tokens)
        if len(times_s) != num_tokens:
            return {"error": f"{len(times_s)} tokens instead of {num_tokens}"}
        return {"times_s": times_s}
    return {"elapsed_s": engine.many(request["prompts"], num_tokens)}


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _parse(argv: list[str]) -> tuple[WorkerOptions, set[int]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", default="")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--kv-cache-bytes", type=int, default=2 << 30)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    values = vars(parser.parse_args(argv))
    cores = {int(core) for core in values.pop("cores").split(",") if core}
    return WorkerOptions(**values), cores
