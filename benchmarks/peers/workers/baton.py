"""Ours: the engine in this process, stepped by hand so that every token has a time."""

from __future__ import annotations

import time
from itertools import count, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.workers.wire import (
    Many,
    Single,
    Timeline,
    UnavailableHereError,
    WorkerOptions,
    serve,
)
from shared.engine.llm import LLM
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.errors import ConfigError
from shared.request.sampling_params import SamplingParams
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
        if options.adapters:
            settings |= {"enable_lora": True, "max_loras": len(options.adapters)}
        try:
            llm = LLM(options.model, **settings)
        except (TypeError, ConfigError) as error:
            if not options.quantization:
                raise
            raise UnavailableHereError(f"{options.quantization}: {error}") from error
        self._engine = llm.engine
        self._ids = count()
        self._quantization = options.quantization
        self._adapters = [
            llm.home.adapters.load(f"adapter-{place}", path)[0].ref
            for place, path in enumerate(options.adapters)
            if llm.home.adapters is not None
        ]

    def one(
        self, prompt: Sequence[int], num_tokens: int, adapters: Sequence[int | None] = ()
    ) -> Single:
        """Answer one prompt."""
        started_s = time.perf_counter()
        self._add(prompt, num_tokens, adapters[0] if adapters else None)
        times_s: list[float] = []
        token_ids: list[int] = []
        while self._engine.has_work():
            for event in self._step():
                token_ids += event.token_ids
            num_new = len(token_ids) - len(times_s)
            times_s += [time.perf_counter() - started_s] * num_new
        return Single(times_s=times_s, token_ids=token_ids)

    def many(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
    ) -> Many:
        """Answer all prompts."""
        timeline = Timeline(len(prompts))
        for prompt, adapter in zip_longest(prompts, adapters):
            self._add(prompt, num_tokens, adapter)
        while self._engine.has_work():
            timeline.add({event.request_id: len(event.token_ids) for event in self._step()})
        return timeline.end()

    def describe(self) -> dict[str, Any]:
        """Version and quantization."""
        return {"version": VERSION, "quantization": self._quantization}

    def _add(self, prompt: Sequence[int], num_tokens: int, adapter: int | None) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self._engine.add(
            EngineRequest(
                request_id=f"bench-{next(self._ids)}",
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                adapter=None if adapter is None else self._adapters[adapter],
            )
        )

    def _step(self) -> list[NewTokens]:
        events = self._engine.step()
        for event in events:
            if isinstance(event, Failed):
                raise event.error
        return [event for event in events if isinstance(event, NewTokens) and event.token_ids]


if __name__ == "__main__":
    serve(BatonEngine)
