"""Decides whether a prompt is computed here or handed to a prefill worker."""

from __future__ import annotations

from enum import StrEnum


class PrefillPlace(StrEnum):
    """Where a prompt was computed, and why; the label of a metric."""

    #: By a prefill worker.
    REMOTE = "remote"
    #: The beginning by a prefill worker, the rest here.
    SPLIT = "split"
    #: Here: so little was left to compute that moving it would not pay.
    LOCAL_SHORT = "local_short"
    #: Here: the router expected that to cost less than a hand-off.
    LOCAL_CHOSEN = "local_chosen"
    #: Here: the router knew no prefill worker.
    LOCAL_NO_WORKER = "local_no_worker"
    #: Here: every prefill worker failed.
    LOCAL_FALLBACK = "local_fallback"


class Decider:
    """The last word on a place that the router chose, by what it cannot know: this worker's hit.

    Of a prompt to hand over, little may be left to compute: at most a threshold stays here.
    """

    def __init__(self, *, local_prefill_threshold: int) -> None:
        self._threshold = local_prefill_threshold

    def place(
        self, *, num_uncached_tokens: int, num_candidates: int, is_kept: bool = False
    ) -> PrefillPlace:
        """`num_uncached_tokens` are those that this worker's own cache does not cover.

        `is_kept`: there are no candidates because the router chose this worker.
        """
        if num_candidates == 0:
            return PrefillPlace.LOCAL_CHOSEN if is_kept else PrefillPlace.LOCAL_NO_WORKER
        if num_uncached_tokens <= self._threshold:
            return PrefillPlace.LOCAL_SHORT
        return PrefillPlace.REMOTE
