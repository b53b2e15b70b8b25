"""Ours: the engine in this process, stepped by hand so that every token has a time."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.workers.wire import UnavailableHereError, WorkerOptions, serve
from shared.engine.events import Failed, NewTokens
from shared.engine.llm import LLM
from shared.engine.request import EngineRequest
from shared.engine.sampling_params import SamplingParams
from shared.errors import ConfigError
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence


class BatonEngine:
    """The settings are the defaults, apart from what all engines here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        """Raises UnavailableHereError where this version knows no such quantization."""
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
        settings: dict[str, Any] = {
            "dtype": options.dtype,
            "max_model_len": options.max_model_len,
            "max_num_seqs": options.max_num_seqs,
            "kv_cache_memory_bytes": options.kv_cache_bytes,
        }
        if options.quantization:
            settings["quantization"] = options.quantization
        try:
            self._engine = LLM(options.model, **settings).engine
        except (TypeError, ConfigError) as error:
            if not options.quantization:
                raise
            raise UnavailableHereError(f"{options.quantization}: {error}") from error
        self._ids = count()
        self._quantization = options.quantization

    def one(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Answer one prompt."""
        started_s = time.perf_counter()
        self._add(prompt, num_tokens)
        times_s: list[float] = []
        while self._engine.has_work():
            num_new = self._step()
            times_s += [time.perf_counter() - started_s] * num_new
        return times_s

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Answer all prompts."""
        started_s = time.perf_counter()
        for prompt in prompts:
            self._add(prompt, num_tokens)
        num_answered = 0
        while self._engine.has_work():
            num_answered += self._step()
        elapsed_s = time.perf_counter() - started_s
        if num_answered != num_tokens * len(prompts):
            raise RuntimeError(f"{num_answered} tokens instead of {num_tokens * len(prompts)}")
        return elapsed_s

    def describe(self) -> dict[str, Any]:
        """Version and quantization."""
        return {"version": VERSION, "quantization": self._quantization}

    def _add(self, prompt: Sequence[int], num_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self._engine.add(
            EngineRequest(
                request_id=f"bench-{next(self._ids)}",
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
            )
        )

    def _step(self) -> int:
        num_new = 0
        for event in self._engine.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, NewTokens):
                num_new += len(event.token_ids)
        return num_new


if __name__ == "__main__":
    serve(BatonEngine)
