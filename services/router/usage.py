"""Cost and timings of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Cost of a request; see proto/baton/v1/common.proto for the meaning of each number."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    local_hit_tokens: int = 0
    transferred_tokens: int = 0
    transferred_hit_tokens: int = 0
    fetched_tokens: int = 0
    recomputed_tokens: int = 0
    num_replays: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Timings of a request; see proto/baton/v1/common.proto."""

    router_queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    route_ms: float = 0.0
    decode_queue_ms: float = 0.0
    prefill_queue_ms: float = 0.0
    prefill_ms: float = 0.0
    transfer_exposed_ms: float = 0.0
    transfer_ms: float = 0.0
    first_token_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    transfer_bytes: int = 0
    connector: str = ""
    prefill_worker: str = ""
    decode_worker: str = ""
    prefix_fetch_ms: float = 0.0
    prefix_fetch_bytes: int = 0
    prefix_source: str = ""
    replay_ms: float = 0.0
    prefill_place: str = ""
