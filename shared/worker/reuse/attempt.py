"""One attempt to fetch a prefix from one peer: handshake, cost model, fetch, learning."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from shared.errors import BatonError, DeadlineError, TransferError, TransferFailure
from shared.worker.reuse.block_fetch import NoRoomError
from shared.worker.reuse.metrics import FetchOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.worker.peers.breaker import PeerBreaker
    from shared.worker.peers.peers import Peer, PeerBook
    from shared.worker.reuse.block_fetch import BlockFetcher, FetchedBlocks
    from shared.worker.reuse.cost_model import CostModel
    from shared.worker.reuse.metrics import ReuseMetrics
    from shared.worker.reuse.source import PrefixSource
    from shared.worker.reuse_settings import ReusePolicy

log = structlog.get_logger(__name__)


class PeerAttempts:
    """Fetches from peers. The result is in the cache already; None: nothing has changed."""

    def __init__(
        self,
        *,
        policy: ReusePolicy,
        block_size: int,
        block_bytes: int,
        peers: PeerBook,
        fetcher: BlockFetcher,
        costs: CostModel,
        breaker: PeerBreaker,
        metrics: ReuseMetrics,
    ) -> None:
        self._policy = policy
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._peers = peers
        self._fetcher = fetcher
        self._costs = costs
        self._breaker = breaker
        self._metrics = metrics

    def allows(self, source: PrefixSource) -> bool:
        """Return whether the peer may be asked, without a recent failure."""
        return self._breaker.allows(source.worker)

    def joined(self) -> None:
        """Count a request that waits for another one's attempt."""
        self._metrics.joined()

    async def run(
        self,
        source: PrefixSource,
        block_hashes: Sequence[bytes],
        *,
        first_block: int,
        request_id: str,
        deadline_s: float,
    ) -> FetchedBlocks | None:
        """Fetch as many of these blocks as the peer has, until `deadline_s` (monotonic).

        They are blocks of a prefix from block `first_block` on.
        """
        if not self._breaker.begin(source.worker):
            return None
        attempt = _Attempt(source, block_hashes, first_block, request_id, deadline_s)
        try:
            return await self._until_deadline(attempt)
        finally:
            self._breaker.gave_up(source.worker)

    async def _until_deadline(self, attempt: _Attempt) -> FetchedBlocks | None:
        try:
            async with asyncio.timeout(attempt.remaining_s):
                fetched = await self._run(attempt)
        except (BatonError, TimeoutError, NoRoomError) as error:
            self._fail(attempt, error)
            return None
        except asyncio.CancelledError:
            attempt.outcome = FetchOutcome.CANCELLED
            self._count(attempt)
            raise
        if attempt.outcome is not None:
            self._count(attempt, 0 if fetched is None else fetched.num_bytes)
        return fetched

    async def _run(self, attempt: _Attempt) -> FetchedBlocks | None:
        source = attempt.source
        peer = await self._peers.meet(source.worker, source.address)
        attempt.connector = peer.connector
        if peer.worker != source.worker:
            attempt.outcome = FetchOutcome.STALE
            self._breaker.failed(source.worker)
            return None
        if not (peer.shares_prefixes and self._pays(attempt, peer)):
            self._metrics.declined(attempt.connector)
            return None
        fetched = await self._fetch(attempt, peer)
        if fetched is not None:
            self._breaker.succeeded(peer.worker)
            self._costs.observe_transfer(
                attempt.connector, peer.worker, fetched.num_bytes, fetched.duration_ms
            )
        return fetched

    async def _fetch(self, attempt: _Attempt, peer: Peer) -> FetchedBlocks | None:
        """Request all claimed blocks; look up what the peer has only after a refusal.

        Claims are nearly always true, and each call waits for a step of the peer's engine.
        """
        attempt.outcome = FetchOutcome.LANDED
        try:
            return await self._send(attempt, peer)
        except TransferError as error:
            if error.reason is not TransferFailure.INCOMPLETE:
                raise
        attempt.outcome = FetchOutcome.MISSING
        num_held = await self._fetcher.lookup(
            peer, attempt.block_hashes, attempt.remaining_s, first_block=attempt.first_block
        )
        attempt.block_hashes = attempt.block_hashes[:num_held]
        if not num_held or not self._pays(attempt, peer):
            return None
        fetched = await self._send(attempt, peer)
        attempt.outcome = FetchOutcome.PARTIAL
        return fetched

    async def _send(self, attempt: _Attempt, peer: Peer) -> FetchedBlocks:
        return await self._fetcher.fetch(
            peer,
            attempt.block_hashes,
            first_block=attempt.first_block,
            request_id=attempt.request_id,
            timeout_s=attempt.remaining_s,
        )

    def _pays(self, attempt: _Attempt, peer: Peer) -> bool:
        num_blocks = len(attempt.block_hashes)
        decision = self._costs.decide(
            self._policy,
            connector=attempt.connector,
            worker=peer.worker,
            num_tokens=num_blocks * self._block_size,
            num_bytes=num_blocks * self._block_bytes,
        )
        log.debug(
            "prefix_fetch_decision",
            request_id=attempt.request_id,
            peer=str(peer.worker),
            connector=attempt.connector,
            num_blocks=num_blocks,
            fetch=decision.fetch,
            move_ms=round(decision.move_ms, 3),
            compute_ms=round(decision.compute_ms, 3),
            policy=self._policy.value,
        )
        return decision.fetch

    def _fail(self, attempt: _Attempt, error: Exception) -> None:
        """Set the outcome. A stale claim or a lack of room here is not the peer's failure."""
        if isinstance(error, NoRoomError):
            attempt.outcome = FetchOutcome.NO_ROOM
        elif isinstance(error, TransferError) and error.reason is TransferFailure.INCOMPLETE:
            attempt.outcome = FetchOutcome.MISSING
        else:
            attempt.outcome = FetchOutcome.TIMED_OUT if _is_late(error) else FetchOutcome.FAILED
            self._breaker.failed(attempt.source.worker)
            self._peers.forget(attempt.source.address)
            log.warning(
                "prefix_fetch_failed",
                request_id=attempt.request_id,
                peer=str(attempt.source.worker),
                outcome=attempt.outcome.value,
                error=str(error),
            )
        self._count(attempt)

    def _count(self, attempt: _Attempt, num_bytes: int = 0) -> None:
        if attempt.outcome is not None:
            self._metrics.ended(
                attempt.outcome,
                connector=attempt.connector,
                num_bytes=num_bytes,
                duration_s=time.monotonic() - attempt.started_s,
            )


def _is_late(error: Exception) -> bool:
    """Return whether a deadline caused the error; all deadlines are equal."""
    if isinstance(error, TransferError):
        return error.reason is TransferFailure.TIMEOUT
    return isinstance(error, TimeoutError | DeadlineError)


class _Attempt:
    """The state of an attempt; without an outcome it was declined."""

    def __init__(
        self,
        source: PrefixSource,
        block_hashes: Sequence[bytes],
        first_block: int,
        request_id: str,
        deadline_s: float,
    ) -> None:
        self.source = source
        self.first_block = first_block
        self.block_hashes = block_hashes
        self.request_id = request_id
        self.connector = ""
        self.outcome: FetchOutcome | None = None
        self.started_s = time.monotonic()
        self._deadline_s = deadline_s

    @property
    def remaining_s(self) -> float:
        """Time [s] left; never negative."""
        return max(0.0, self._deadline_s - time.monotonic())
