"""Vectors by a class `LLM` with vLLM's methods, which vLLM and ours have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.workers.wire import NUM_COMPARED, Vectors

if TYPE_CHECKING:
    from collections.abc import Sequence


class LlmVectors:
    """An `OfflineEmbedder`."""

    def __init__(self, llm: Any, version: str) -> None:
        """`llm`: loaded, and made for vectors."""
        self._llm = llm
        self._version = version

    def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Read all texts."""
        prompts = [{"prompt_token_ids": list(text)} for text in texts]
        started_s = time.perf_counter()
        outputs = self._llm.embed(prompts, use_tqdm=False)
        elapsed_s = time.perf_counter() - started_s
        beginning = list(outputs[0].outputs.embedding[:NUM_COMPARED])
        return Vectors(elapsed_s=elapsed_s, beginning=beginning)

    def describe(self) -> dict[str, Any]:
        """Version."""
        return {"version": self._version}
