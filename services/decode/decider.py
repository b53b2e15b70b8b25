"""Decides whether a prompt is computed here or handed to a prefill worker."""

from __future__ import annotations

from enum import StrEnum


class PrefillPlace(StrEnum):
    """Where a prompt was computed, and why; the label of a metric."""

    #: By a prefill worker.
    REMOTE = "remote"
    #: Here: so little was left to compute that moving it would not pay.
    LOCAL_SHORT = "local_short"
    #: Here: the router knew no prefill worker.
    LOCAL_NO_WORKER = "local_no_worker"
    #: Here: every prefill worker failed.
    LOCAL_FALLBACK = "local_fallback"


class Decider:
    """Compares what is left to compute with a threshold."""

    def __init__(self, *, local_prefill_threshold: int) -> None:
        self._threshold = local_prefill_threshold

    def place(self, *, num_uncached_tokens: int, num_candidates: int) -> PrefillPlace:
        """`num_uncached_tokens` are those that this worker's own cache does not cover."""
        if num_candidates == 0:
            return PrefillPlace.LOCAL_NO_WORKER
        if num_uncached_tokens <= self._threshold:
            return PrefillPlace.LOCAL_SHORT
        return PrefillPlace.REMOTE
