"""vLLM's offline engine, driven step by step. Runs in an environment that has vLLM."""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from benchmarks.peers.workers.wire import Many, Single, Timeline, WorkerOptions, serve

if TYPE_CHECKING:
    from collections.abc import Sequence


class VllmEngine:
    """Its own defaults, apart from what all engines here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        import vllm  # noqa: PLC0415 - reads the environment, which the parent has set

        self._vllm = vllm
        self._engine = vllm.LLM(
            options.model,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            enable_prefix_caching=True,
            seed=0,
            **_adapter_settings(options),
        ).llm_engine
        self._num_requests = 0
        self._adapters = [self._named(place, path) for place, path in enumerate(options.adapters)]

    def one(
        self, prompt: Sequence[int], num_tokens: int, adapters: Sequence[int | None] = ()
    ) -> Single:
        """Answer one prompt."""
        started_s = time.perf_counter()
        self._add(prompt, num_tokens, adapters[0] if adapters else None)
        times_s: list[float] = []
        token_ids: list[int] = []
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                token_ids = list(output.outputs[0].token_ids)
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
        # Outputs hold all tokens so far.
        known: Counter[str] = Counter()
        while self._engine.has_unfinished_requests():
            new_tokens: dict[str, int] = {}
            for output in self._engine.step():
                num = len(output.outputs[0].token_ids)
                new_tokens[output.request_id] = num - known[output.request_id]
                known[output.request_id] = num
            timeline.add(new_tokens)
        return timeline.end()

    def describe(self) -> dict[str, Any]:
        """Version, and whether the libraries it recommends were loaded."""
        return {
            "version": self._vllm.__version__,
            "preloaded": [
                path.rsplit("/", 1)[-1] for path in os.environ.get("LD_PRELOAD", "").split(":")
            ],
        }

    def _named(self, place: int, path: str) -> Any:
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 - as above

        return LoRARequest(f"adapter-{place}", place + 1, path)

    def _add(self, prompt: Sequence[int], num_tokens: int, adapter: int | None) -> None:
        sampling = self._vllm.SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        self._num_requests += 1
        request = {"prompt_token_ids": list(prompt)}
        lora = None if adapter is None else self._adapters[adapter]
        self._engine.add_request(str(self._num_requests), request, sampling, lora_request=lora)


def _adapter_settings(options: WorkerOptions) -> dict[str, Any]:
    num = len(options.adapters)
    return {"enable_lora": True, "max_loras": num, "max_lora_rank": 16} if num else {}


if __name__ == "__main__":
    serve(VllmEngine)
