"""What a measured process and its parent say to each other: one JSON object per line.

Times are taken in the measured process, so that the pipe is not part of any of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """One answer: its tokens, and the seconds from submission to each of them."""

    times_s: list[float]
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Answers to prompts that were submitted together. Seconds since then."""

    #: Until every prompt had its first token: from here on, all that runs is decoding.
    prefilled_s: float
    #: Tokens that were there by then.
    num_by_then: int
    elapsed_s: float
    num_tokens: int


#: Numbers of a vector that are compared.
NUM_COMPARED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """Vectors of texts that were submitted together."""

    elapsed_s: float
    #: The first numbers of the first text's vector: do all compute the same?
    beginning: list[float]


class Described(Protocol):
    """What is measured."""

    def describe(self) -> dict[str, Any]:
        """Version and whatever else a reader of the result must know."""


class OfflineEngine(Described, Protocol):
    """An engine in this process. Greedy; end tokens are ignored."""

    def one(self, prompt: Sequence[int], num_tokens: int) -> Single:
        """Answer one prompt."""

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Many:
        """Answer all prompts, submitted together."""


class AdapterEngine(Described, Protocol):
    """One that serves LoRA adapters, too.

    `adapters`: by prompt, the place of its adapter in `WorkerOptions.adapters`; None: the model
    alone, which is also meant where nothing is given.
    """

    def one(
        self, prompt: Sequence[int], num_tokens: int, adapters: Sequence[int | None] = ()
    ) -> Single:
        """Answer one prompt."""

    def many(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
    ) -> Many:
        """Answer all prompts, submitted together."""


class OfflineEmbedder(Described, Protocol):
    """Something in this process that makes a vector of each text."""

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Read all texts, given as token ids, submitted together."""


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
    #: Folders of LoRA adapters.
    adapters: tuple[str, ...] = ()


class Timeline:
    """Counts the tokens of many answers while they come."""

    def __init__(self, num_prompts: int) -> None:
        self._started_s = time.perf_counter()
        self._num_prompts = num_prompts
        self._begun: set[str] = set()
        self._prefilled_s = 0.0
        self._num_by_then = 0
        self._num_tokens = 0

    def add(self, new_tokens: Mapping[str, int]) -> None:
        """Tokens that came together, by request."""
        if not new_tokens:
            return
        self._num_tokens += sum(new_tokens.values())
        if len(self._begun) < self._num_prompts:
            self._begun.update(new_tokens)
            if len(self._begun) == self._num_prompts:
                self._prefilled_s = time.perf_counter() - self._started_s
                self._num_by_then = self._num_tokens

    def end(self) -> Many:
        """Return the measurement, after all answers have ended."""
        return Many(
            prefilled_s=self._prefilled_s,
            num_by_then=self._num_by_then,
            elapsed_s=time.perf_counter() - self._started_s,
            num_tokens=self._num_tokens,
        )


class UnavailableHereError(Exception):
    """This engine cannot do what was asked for. The message is for the report."""


def serve(
    make_engine: Callable[[WorkerOptions], OfflineEngine | AdapterEngine | OfflineEmbedder],
) -> None:
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


def _answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    prompts, num_tokens = request["prompts"], int(request["num_tokens"])
    if request["op"] == "embed":
        return asdict(engine.embed(prompts))
    # Engines without adapters know no such argument.
    more = (request["adapters"],) if request["adapters"] else ()
    if request["op"] == "one":
        single = engine.one(prompts[0], num_tokens, *more)
        answer, num, wanted = asdict(single), len(single.times_s), num_tokens
    else:
        many = engine.many(prompts, num_tokens, *more)
        answer, num, wanted = asdict(many), many.num_tokens, num_tokens * len(prompts)
    if num != wanted:
        return {"error": f"{num} tokens instead of {wanted}"}
    return answer


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
    parser.add_argument("--adapters", nargs="*", default=())
    values = vars(parser.parse_args(argv))
    values["adapters"] = tuple(values["adapters"])
    cores = {int(core) for core in values.pop("cores").split(",") if core}
    return WorkerOptions(**values), cores
