"""The names of what an engine counts."""

from __future__ import annotations

#: What `EngineStats.counters` counts since start.
COUNTERS = (
    "engine_steps",
    # Those with prompts in them, their tokens, and what they took in microseconds.
    "prefill_steps",
    "prefill_step_tokens",
    "prefill_step_us",
    "computed_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "transfers_completed",
    # Failed, or not begun because so little was left to compute.
    "transfers_unused",
    "requests_aborted",
    "requests_failed",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)
