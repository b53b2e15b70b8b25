"""vLLM for vectors. Runs in an environment that has vLLM."""

from __future__ import annotations

from benchmarks.peers.workers.llm_vectors import LlmVectors
from benchmarks.peers.workers.wire import WorkerOptions, serve


def load(options: WorkerOptions) -> LlmVectors:
    """Load the model with vLLM's defaults, apart from what all here are given."""
    import vllm  # noqa: PLC0415 - reads the environment, which the parent has set

    llm = vllm.LLM(
        options.model,
        runner="pooling",
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        seed=0,
    )
    return LlmVectors(llm, vllm.__version__)


if __name__ == "__main__":
    serve(load)
