"""Counters of an engine."""

from __future__ import annotations

from collections import Counter

from shared.telemetry.buckets import STEP_TOKENS
from shared.telemetry.plain_histogram import PlainHistogram

#: Names of the counters in `EngineStats.counters`, all since start.
COUNTERS = (
    "engine_steps",
    # Steps with prompts in them, their tokens, and their time in microseconds.
    "prefill_steps",
    "prefill_step_tokens",
    "prefill_step_us",
    # Steps in which sequences that decode left prompts less than the budget.
    "limited_steps",
    "computed_tokens",
    # Those of them that are of prompts.
    "computed_prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "transfers_completed",
    # Failed, or not begun because too little was left to compute.
    "transfers_unused",
    "requests_aborted",
    "requests_failed",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


class EngineCounters(Counter[str]):
    """`COUNTERS`, and the number of tokens per step. Updated per step, never per token."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COUNTERS, 0))
        #: May be read in any thread.
        self.step_sizes = PlainHistogram(STEP_TOKENS)

    def add_step(self, num_tokens: int) -> None:
        """Count a scheduled step of `num_tokens` tokens."""
        self["engine_steps"] += 1
        self["computed_tokens"] += num_tokens
        self.step_sizes.add(num_tokens)
