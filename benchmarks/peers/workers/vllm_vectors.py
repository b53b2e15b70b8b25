"""vLLM for vectors. Runs in an environment that has vLLM."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.workers.wire import Vectors, WorkerOptions, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Numbers of a vector that are compared.
NUM_COMPARED = 8


class VllmVectors:
    """Its own defaults, apart from what all here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        import vllm  # noqa: PLC0415 - reads the environment, which the parent has set

        self._version = vllm.__version__
        # A prefix cache would only help texts that repeat, and none does.
        self._llm = vllm.LLM(
            options.model,
            runner="pooling",
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            seed=0,
        )

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Read all texts."""
        prompts: list[Any] = [{"prompt_token_ids": list(text)} for text in texts]
        started_s = time.perf_counter()
        outputs = self._llm.embed(prompts, use_tqdm=False)
        elapsed_s = time.perf_counter() - started_s
        beginning = list(outputs[0].outputs.embedding[:NUM_COMPARED])
        return Vectors(elapsed_s=elapsed_s, beginning=beginning)

    def describe(self) -> dict[str, Any]:
        """Version."""
        return {"version": self._version}


if __name__ == "__main__":
    serve(VllmVectors)
