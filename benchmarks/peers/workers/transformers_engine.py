"""`generate()` of transformers, with a static batch. Runs where transformers is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import transformers

from benchmarks.peers.workers.wire import Many, Single, WorkerOptions, serve

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    """A streamer, in the sense of transformers, that keeps times only."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Called with the prompt, and then with each token."""
        del value
        if self._prompt_seen:
            self.times_s.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        """Called after the last token."""


class TransformersEngine:
    """Scaled dot-product attention, its default."""

    def __init__(self, options: WorkerOptions) -> None:
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
        )

    def one(self, prompt: Sequence[int], num_tokens: int) -> Single:
        """Answer one prompt."""
        started_s = time.perf_counter()
        clock = Clock()
        answers = self._generate([prompt], num_tokens, clock)
        return Single(
            times_s=[at_s - started_s for at_s in clock.times_s],
            token_ids=answers[0, len(prompt) :].tolist(),
        )

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Many:
        """Answer all prompts, which must be equally long."""
        started_s = time.perf_counter()
        clock = Clock()
        answers = self._generate(prompts, num_tokens, clock)
        elapsed_s = time.perf_counter() - started_s
        return Many(
            prefilled_s=clock.times_s[0] - started_s,
            num_by_then=len(prompts),
            elapsed_s=elapsed_s,
            num_tokens=answers[:, len(prompts[0]) :].numel(),
        )

    def describe(self) -> dict[str, Any]:
        """Version."""
        return {"version": transformers.__version__}

    def _generate(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, clock: Clock
    ) -> torch.Tensor:
        token_ids = torch.tensor(prompts)
        answers: torch.Tensor = self._model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            streamer=clock,
        )
        return answers


if __name__ == "__main__":
    serve(TransformersEngine)
