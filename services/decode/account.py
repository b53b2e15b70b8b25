"""What one answer cost: tokens by source, and milliseconds by stage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from baton.v1 import common_pb2
from services.decode.decider import PrefillPlace
from shared.worker.reuse.prefix_reuse import PrefixFetchReport

if TYPE_CHECKING:
    from services.decode.prefill_attempt import HandOffReport


class Account:
    """Filled in while the answer is made. Times are of this worker's monotonic clock."""

    def __init__(self, *, num_prompt_tokens: int) -> None:
        self.place = PrefillPlace.LOCAL_NO_WORKER
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0
        self._num_cached_tokens = 0
        self._report: HandOffReport | None = None
        self._fetch = PrefixFetchReport()
        self._arrived_s = time.monotonic()
        self._admitted_s: float | None = None
        self._first_token_s: float | None = None
        self._has_news = True

    @property
    def admitted(self) -> bool:
        """Whether `admit` was called; a second admission follows a preemption."""
        return self._admitted_s is not None

    def fetched(self, fetch: PrefixFetchReport) -> None:
        """This worker tried to get a prefix from a peer before it queued the request."""
        self._fetch = fetch

    def admit(self, num_cached_tokens: int, at_s: float) -> None:
        """The sequence got its blocks, with this many tokens in the worker's own cache."""
        self._admitted_s = at_s
        self._num_cached_tokens = num_cached_tokens

    def settle(self, report: HandOffReport) -> None:
        """The hand-off ended, well or not."""
        self._report = report
        self._has_news = True
        if not report.succeeded:
            self.place = PrefillPlace.LOCAL_FALLBACK

    def take_news(self) -> bool:
        """Whether the prompt's sources may have changed since the last call."""
        news, self._has_news = self._has_news, False
        return news

    def count(self, num_tokens: int) -> None:
        """Tokens were sent to the caller."""
        if self._first_token_s is None:
            self._first_token_s = time.monotonic()
        self._num_output_tokens += num_tokens

    def usage(self) -> common_pb2.Usage:
        """By source; the sources add up to the prompt.

        An answer that ended with its first token never waited for the transfer. Its prompt was
        nevertheless computed elsewhere, so it counts as transferred.
        """
        fetched = self._fetch.num_used(self._num_cached_tokens)
        sources = common_pb2.PromptSources(
            local_hit=self._num_cached_tokens - fetched,
            transferred=fetched,
            transferred_hit=fetched,
            fetched=fetched,
        )
        rest = self._num_prompt_tokens - self._num_cached_tokens
        if self.place is PrefillPlace.REMOTE:
            sources.transferred = rest
            if self._report is not None and self._report.done is not None:
                done = self._report.done
                remote_hit = max(0, done.cached_tokens - self._num_cached_tokens)
                sources.transferred_hit = remote_hit
                # Fetched blocks are the last that the prefill worker had.
                sources.fetched = min(done.prefix_fetch.num_tokens, remote_hit)
        else:
            sources.computed = rest
        return common_pb2.Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            cached_tokens=sources.local_hit + sources.transferred_hit,
            sources=sources,
        )

    def timings(self) -> common_pb2.Timings:
        """This worker's share of the request's time."""
        now_s = time.monotonic()
        admitted_s = self._admitted_s or now_s
        first_token_s = self._first_token_s or now_s
        fetch = self._fetch
        queued_ms = (admitted_s - self._arrived_s) * 1e3
        timings = common_pb2.Timings(
            decode_queue_ms=max(0.0, queued_ms - fetch.duration_ms),
            prefix_fetch_ms=fetch.duration_ms,
            prefix_fetch_bytes=fetch.num_bytes,
            prefix_source=fetch.source,
            prefill_ms=(first_token_s - admitted_s) * 1e3,
            decode_ms=(now_s - first_token_s) * 1e3,
        )
        report = self._report
        if report is not None and report.receipt is not None and report.done is not None:
            timings.prefill_queue_ms = report.done.queue_ms
            timings.prefill_ms = report.done.compute_ms
            timings.transfer_ms = report.done.transfer_ms
            timings.transfer_exposed_ms = report.exposed_ms
            timings.transfer_bytes = report.receipt.num_bytes
            timings.connector = report.connector
            timings.prefill_worker = report.prefill_worker
            timings.prefix_fetch_ms = report.done.prefix_fetch.duration_ms
            timings.prefix_fetch_bytes = report.done.prefix_fetch.num_bytes
            timings.prefix_source = report.done.prefix_fetch.source
        return timings
