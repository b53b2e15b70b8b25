"""How well the server speculated during a run, from its Prometheus counters."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import httpx

COUNTER = re.compile(
    r"^(?:vllm:|baton_)spec_decode_num_"
    r"(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total"
    r'(?:\{(?:[^}]*?position="(\d+)")?[^}]*\})? (\S+)',
    re.MULTILINE,
)


async def read_speculation(http: httpx.AsyncClient) -> dict[str, float] | None:
    """Counters of speculative decoding from /metrics, or None where there are none.

    Accepted tokens by position are under their position, a number.
    """
    try:
        response = await http.get("/metrics", timeout=10.0)
    except httpx.TransportError:
        return None
    if response.status_code != HTTPStatus.OK:
        return None
    counters: dict[str, float] = {}
    for name, position, value in COUNTER.findall(response.text):
        key = position if name.endswith("_per_pos") else name
        counters[key] = counters.get(key, 0.0) + float(value)
    return counters or None


def compare_speculation(
    before: dict[str, float] | None, after: dict[str, float] | None
) -> dict[str, Any]:
    """The entries of a result about speculation during a run; none where nothing was drafted."""
    if before is None or after is None:
        return {}
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    num_drafts, num_tokens = grown.get("drafts", 0.0), grown.get("draft_tokens", 0.0)
    num_accepted = grown.get("accepted_tokens", 0.0)
    if num_drafts <= 0 or num_tokens <= 0:
        return {}
    positions = sorted((key for key in grown if key.isdigit()), key=int)
    return {
        "spec_decode_acceptance_rate": 100 * num_accepted / num_tokens,
        "spec_decode_acceptance_length": 1 + num_accepted / num_drafts,
        "spec_decode_num_drafts": int(num_drafts),
        "spec_decode_draft_tokens": int(num_tokens),
        "spec_decode_accepted_tokens": int(num_accepted),
        "spec_decode_per_position_acceptance_rates": [
            grown[position] / num_drafts for position in positions
        ],
    }
