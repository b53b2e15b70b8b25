"""What one answer cost: tokens by source, and milliseconds by stage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from baton.v1 import common_pb2
from services.decode.decider import PrefillPlace
from shared.worker.reuse.prefix_reuse import PrefixFetchReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.decode.prefill_attempt import HandOffReport


class Account:
    """Records the cost of one answer while it is made. Times are of the monotonic clock."""

    def __init__(self, *, num_prompt_tokens: int, num_resumed_tokens: int = 0) -> None:
        """`num_resumed_tokens`: tokens of the answer that another worker emitted before."""
        self.place = PrefillPlace.LOCAL_NO_WORKER
        #: Leading tokens that were to be computed elsewhere, if the rest was to be computed here.
        self.num_part = 0
        self.num_prompt_tokens = num_prompt_tokens
        self._num_resumed_tokens = num_resumed_tokens
        self._num_output_tokens = num_resumed_tokens
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
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
        """Record the attempt to fetch a prefix from a peer, made before the request was queued."""
        self._fetch = fetch

    def admit(self, num_cached_tokens: int, at_s: float) -> None:
        """Record that the sequence has its blocks, with so many tokens in this worker's cache."""
        self._admitted_s = at_s
        self._num_cached_tokens = num_cached_tokens

    def settle(self, report: HandOffReport) -> None:
        """Record the result of the hand-off, successful or failed."""
        self._report = report
        self._has_news = True
        if not report.succeeded:
            self.place = PrefillPlace.LOCAL_FALLBACK

    def take_news(self) -> bool:
        """Whether the prompt's sources may have changed since the last call."""
        news, self._has_news = self._has_news, False
        return news

    def count(self, num_tokens: int) -> None:
        """Record tokens that were sent to the caller."""
        if self._first_token_s is None:
            self._first_token_s = time.monotonic()
        self._num_output_tokens += num_tokens

    def guessed(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Record how many draft tokens were checked and how many of them were accepted."""
        self._num_draft_tokens += num_draft_tokens
        self._num_accepted_tokens += num_accepted_tokens

    def usage(self) -> common_pb2.Usage:
        """Return the tokens by source; the sources add up to the prompt.

        An answer that ended with its first token never waited for the transfer. Its prompt was
        nevertheless computed elsewhere, so it counts as transferred. A resumed answer reports the
        prompt's tokens alone: tokens that were held or moved are the beginning of the sequence.
        """
        moved = fetched = self._fetch.num_used(self._num_cached_tokens)
        here = self._num_cached_tokens - moved
        is_remote = self.place in (PrefillPlace.REMOTE, PrefillPlace.SPLIT)
        if is_remote and self._report is not None and self._report.done is not None:
            done = self._report.done
            moved = max(0, done.cached_tokens - self._num_cached_tokens)
            # Fetched blocks are the last that the prefill worker had.
            fetched = min(done.prefix_fetch.num_tokens, moved)
        sources = self._of_prompt(here, moved, fetched, is_remote=is_remote)
        num_recomputed = 0
        if self._num_resumed_tokens:
            # The last token's KV is computed here for the first time.
            num_tokens = self.num_prompt_tokens + self._num_resumed_tokens
            num_recomputed = max(0, num_tokens - here - moved - 1)
        return common_pb2.Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            cached_tokens=sources.local_hit + sources.transferred_hit,
            sources=sources,
            recomputed_tokens=num_recomputed,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted_tokens,
        )

    def _of_prompt(
        self, here: int, moved: int, fetched: int, *, is_remote: bool
    ) -> common_pb2.PromptSources:
        """Return the prompt's sources, cut from the sequence's.

        `here` leading tokens were held, the next `moved` ones came as a hit, the last `fetched`
        of these from a peer.
        """
        num_here = min(here, self.num_prompt_tokens)
        num_moved = min(moved, self.num_prompt_tokens - num_here)
        rest = self.num_prompt_tokens - num_here - num_moved
        num_computed = 0 if is_remote else rest
        if self.place is PrefillPlace.SPLIT:
            num_computed = min(rest, self.num_prompt_tokens - self.num_part)
        return common_pb2.PromptSources(
            computed=num_computed,
            local_hit=num_here,
            transferred=num_moved + rest - num_computed,
            transferred_hit=num_moved,
            fetched=max(0, fetched - (moved - num_moved)),
        )

    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Yield name, begin and end [s] of each stage on this worker until now."""
        now_s = time.monotonic()
        admitted_s = now_s if self._admitted_s is None else self._admitted_s
        fetched_s = min(admitted_s, self._arrived_s + self._fetch.duration_ms / 1e3)
        if self._fetch.attempted:
            yield "prefix_fetch", self._arrived_s, fetched_s
        yield "queue", fetched_s, admitted_s
        if self._admitted_s is None:
            return
        first_token_s = now_s if self._first_token_s is None else self._first_token_s
        yield "prefill", admitted_s, first_token_s
        if self._first_token_s is not None:
            yield "generate", first_token_s, now_s

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
            prefill_place=self.place.value,
        )
        report = self._report
        if report is not None and report.receipt is not None and report.done is not None:
            timings.prefill_queue_ms = report.done.queue_ms
            if self.place is not PrefillPlace.SPLIT:
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
