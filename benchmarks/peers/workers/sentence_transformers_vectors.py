"""sentence-transformers, with its batches of 32 texts. Runs in an environment that has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sentence_transformers
import torch

from benchmarks.peers.workers.wire import NUM_COMPARED, Vectors, WorkerOptions, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The default of its `encode`, which takes texts only.
BATCH_SIZE = 32


class SentenceTransformersVectors:
    """Its own defaults, apart from what all here are given."""

    def __init__(self, options: WorkerOptions) -> None:
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
        dtype = getattr(torch, options.dtype)
        self._model: Any = sentence_transformers.SentenceTransformer(
            options.model, device="cpu", model_kwargs={"dtype": dtype}
        ).eval()

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Read all texts, which must be equally long."""
        started_s = time.perf_counter()
        vectors = []
        for first in range(0, len(texts), BATCH_SIZE):
            token_ids = torch.tensor(texts[first : first + BATCH_SIZE])
            inputs = {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids)}
            vectors.append(self._model(inputs)["sentence_embedding"])
        beginning = vectors[0][0, :NUM_COMPARED].tolist()
        return Vectors(elapsed_s=time.perf_counter() - started_s, beginning=beginning)

    def describe(self) -> dict[str, Any]:
        """Version."""
        return {"version": sentence_transformers.__version__}


if __name__ == "__main__":
    serve(SentenceTransformersVectors)
