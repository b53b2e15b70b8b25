"""Times of requests in a worker, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Histogram

from shared.telemetry.buckets import LATENCY_S, REQUEST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry


class RequestTimes:
    """Histograms of prefill and decode workers; observed once per request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float] = LATENCY_S) -> Histogram:
            return Histogram(f"baton_request_{name}", text, buckets=buckets, registry=registry)

        #: Time until the engine gave the request its blocks.
        self.queue_s = histogram("queue_time_seconds", "From arrival here to the first step.")
        #: Time from then to the first token, wherever it was computed.
        self.prefill_s = histogram(
            "prefill_time_seconds", "From the first step to the first token."
        )
        self.prompt_tokens = histogram("prompt_tokens", "Tokens of a prompt.", REQUEST_TOKENS)
