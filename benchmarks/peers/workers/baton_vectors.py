"""Ours for vectors: the program's `LLM`, in this process."""

from __future__ import annotations

import torch

from benchmarks.peers.workers.llm_vectors import LlmVectors
from benchmarks.peers.workers.wire import WorkerOptions, serve
from shared.offline.llm import LLM
from shared.version import VERSION


def load(options: WorkerOptions) -> LlmVectors:
    """Load the model with the defaults, apart from what all here are given."""
    torch.set_num_threads(options.threads)
    llm = LLM(
        options.model,
        runner="pooling",
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        kv_cache_memory_bytes=options.kv_cache_bytes,
    )
    return LlmVectors(llm, VERSION)


if __name__ == "__main__":
    serve(load)
