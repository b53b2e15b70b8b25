"""Requests that have ended, as an observer is told of them."""

from __future__ import annotations

from dataclasses import replace

from services.router.request.generation import GenerationRequest
from services.router.usage import Timings, Usage
from services.router.watch.observer import RequestEnd
from shared.generation.params import GenerationParams

SERVED = Timings(
    first_token_ms=40.0,
    decode_ms=90.0,
    total_ms=130.0,
    transfer_bytes=2048,
    transfer_ms=4.0,
    connector="shm",
    prefill_worker="prefill-0",
    decode_worker="decode-0",
)


def served(
    request_id: str = "r",
    *,
    num_prompt_tokens: int = 20,
    num_cached_tokens: int = 5,
    num_tokens: int = 10,
    timings: Timings = SERVED,
    **usage: int,
) -> RequestEnd:
    """A request that got its answer."""
    return RequestEnd(
        request=request_of(request_id, num_prompt_tokens),
        outcome="stop",
        failed=False,
        latency_s=timings.total_ms / 1000,
        usage=Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_tokens,
            cached_tokens=num_cached_tokens,
            **usage,
        ),
        timings=timings,
    )


def refused(request_id: str = "r", *, outcome: str = "OverloadedError") -> RequestEnd:
    """One that got none."""
    return RequestEnd(
        request=request_of(request_id, 20), outcome=outcome, failed=True, latency_s=0.01
    )


def fetched(**fields: object) -> Timings:
    """A prefix came from a peer."""
    return replace(SERVED, **fields)  # type: ignore[arg-type]  # fields of any type


def request_of(request_id: str, num_prompt_tokens: int) -> GenerationRequest:
    """A request with a prompt of so many tokens."""
    return GenerationRequest(
        request_id=request_id,
        model="tiny",
        prompt_token_ids=tuple(range(num_prompt_tokens)),
        params=GenerationParams(),
    )
