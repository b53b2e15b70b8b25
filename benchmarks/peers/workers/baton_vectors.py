"""Ours for vectors: the program's `LLM`, in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.workers.wire import Vectors, WorkerOptions, serve
from shared.offline.llm import LLM
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Numbers of a vector that are compared.
NUM_COMPARED = 8


class BatonVectors:
    """The settings are the defaults, apart from what all here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        torch.set_num_threads(options.threads)
        self._llm = LLM(
            options.model,
            runner="pooling",
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            kv_cache_memory_bytes=options.kv_cache_bytes,
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
        return {"version": VERSION}


if __name__ == "__main__":
    serve(BatonVectors)
