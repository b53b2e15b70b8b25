"""Counters of prefix fetches by outcome."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import Counter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class FetchOutcome(StrEnum):
    """Outcome of one attempt at one peer; the label of a metric."""

    #: All claimed blocks arrived.
    LANDED = "landed"
    #: Fewer than claimed, because the peer had fewer.
    PARTIAL = "partial"
    #: The peer had none of them, or no longer, or the fetch was not worthwhile any more.
    MISSING = "missing"
    #: The peer has a new incarnation.
    STALE = "stale"
    #: Running sequences may need the blocks.
    NO_ROOM = "no_room"
    #: The peer is lost, refused, or sent blocks that could not be verified.
    FAILED = "failed"
    #: Computing would have been faster by then.
    TIMED_OUT = "timed_out"
    #: The request was cancelled.
    CANCELLED = "cancelled"


class ReuseMetrics:
    """`connector` is empty if an attempt ended before one was chosen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"baton_prefix_fetch{name}", text, labels, registry=registry)

        self._fetches = counter(
            "es", "Attempts to fetch a prefix from a peer.", "outcome", "connector"
        )
        self._bytes = counter("_bytes", "Bytes of fetched prefixes.", "connector")
        self._seconds = counter(
            "_seconds", "What attempts delayed their requests.", "outcome", "connector"
        )
        self._declined = counter(
            "_declined",
            "Prefixes that were cheaper to compute than to move, or in blocks of another size.",
            "connector",
        )
        self._joined = counter("_joined", "Requests that waited for another one's fetch.")

    def ended(
        self, outcome: FetchOutcome, *, connector: str, num_bytes: int, duration_s: float
    ) -> None:
        """Count an attempt that has ended."""
        self._fetches.labels(outcome.value, connector).inc()
        self._seconds.labels(outcome.value, connector).inc(duration_s)
        if num_bytes:
            self._bytes.labels(connector).inc(num_bytes)

    def declined(self, connector: str) -> None:
        """Count a fetch that the cost model declined, or that blocks of another size rule out."""
        self._declined.labels(connector).inc()

    def joined(self) -> None:
        """Count a request that waits for another request's fetch of the same blocks."""
        self._joined.inc()
