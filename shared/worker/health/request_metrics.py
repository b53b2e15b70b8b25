"""Times and tokens of requests in a worker, under vLLM's names with the prefix `baton_`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from shared.telemetry.buckets import LATENCY_S, REQUEST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry


class RequestMetrics:
    """Histograms and counters of all services of a worker; observed once per request."""

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
        self._sources = Counter(
            "baton_prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            ["source"],
            registry=registry,
        )

    def count_sources(self, *, computed: int, cached: int, transferred: int) -> None:
        """Count the tokens of a prompt: computed here, in the cache here, and sent by a peer."""
        self._sources.labels("local_compute").inc(computed)
        self._sources.labels("local_cache_hit").inc(cached)
        self._sources.labels("external_kv_transfer").inc(transferred)
