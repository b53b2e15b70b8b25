"""Before a prompt is computed: fetch the longest prefix whose fetch is worthwhile.

Any failure costs time, bounded by the time of the computation, and never causes an error: the
request starts with the prefix that is cached by then. Prefill and decode workers use the same path.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from shared.rpc.cancellation import run_to_end
from shared.worker.reuse_settings import ReusePolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.engine.sequence.request import EngineRequest
    from shared.engine.thread.engine_thread import EngineThread
    from shared.engine.thread.request_stream import RequestStream
    from shared.identity import WorkerId
    from shared.worker.reuse.attempt import PeerAttempts
    from shared.worker.reuse.cost_model import CostModel
    from shared.worker.reuse.source import PrefixSource
    from shared.worker.reuse_settings import ReuseSettings

#: Interval at which a request checks again after another request's fetch of the same blocks.
_MAX_ROUNDS = 4


@dataclass(slots=True)
class PrefixFetchReport:
    """The fetch of one request. A prefix that another request fetched counts as a normal hit."""

    attempted: bool = False
    #: Position of the fetched blocks in the prompt.
    first_token: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    #: Delay of the request by the fetch, successful or not.
    duration_ms: float = 0.0
    #: Name of the peer; empty if no block arrived.
    source: str = ""

    def num_used(self, num_cached_tokens: int) -> int:
        """Return how many fetched tokens the engine found when it admitted the request."""
        return min(self.num_tokens, max(0, num_cached_tokens - self.first_token))


class _FlightEnd(Enum):
    """The end of a fetch that other requests wait for."""

    OVER = auto()
    #: No peer sent the blocks. The waiting requests compute them, too.
    NOTHING_CAME = auto()
    #: Its request was cancelled: a waiting request may fetch.
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class _Prompt:
    request_id: str
    block_hashes: Sequence[bytes]
    sources: Sequence[PrefixSource]


class PrefixReuse:
    """One per worker. Concurrent requests for the same blocks fetch them once."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        settings: ReuseSettings,
        namespace: bytes,
        block_size: int,
        engine: EngineThread,
        attempts: PeerAttempts,
        costs: CostModel,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._namespace = namespace
        self._block_size = block_size
        self._engine = engine
        self._attempts = attempts
        self._costs = costs
        #: By the hash of the first missing block, which identifies the whole prefix before it.
        self._flights: dict[bytes, asyncio.Future[_FlightEnd]] = {}

    async def submit(
        self, request: EngineRequest, *, sources: Sequence[PrefixSource]
    ) -> tuple[RequestStream, PrefixFetchReport]:
        """Fetch if worthwhile, then queue the request. Cancelling this call aborts the request.

        Raises as `EngineThread.submit`.
        """
        stream: RequestStream | None = None
        try:
            async with self._prepared(request, sources) as report:
                stream = await self._engine.submit(request)
        except BaseException:
            # A cancellation may come after the request was queued, while the prefix is released.
            if stream is not None:
                await run_to_end(self._take_back(stream))
            raise
        return stream, report

    async def _take_back(self, stream: RequestStream) -> None:
        await stream.aclose()
        await self._engine.release(stream.request_id)

    @asynccontextmanager
    async def _prepared(
        self, request: EngineRequest, sources: Sequence[PrefixSource]
    ) -> AsyncIterator[PrefixFetchReport]:
        """Hold the cached prefix while the caller submits the request.

        Not longer: a queue of requests that each hold a prefix would never be admitted.
        """
        report = PrefixFetchReport()
        pins: list[int] = []
        started_s = time.monotonic()
        try:
            self._costs.observe_engine(self._engine.stats())
            prompt = self._prompt(request, sources)
            if prompt is not None:
                await self._bring(prompt, pins, report)
            if report.attempted:
                report.duration_ms = (time.monotonic() - started_s) * 1e3
            yield report
        finally:
            if pins:
                await run_to_end(self._unpin(pins))

    def _prompt(self, request: EngineRequest, sources: Sequence[PrefixSource]) -> _Prompt | None:
        others = [source for source in sources if source.worker.name != self._worker.name]
        if self._settings.reuse_policy is ReusePolicy.NEVER or not others:
            return None
        token_ids = (*request.prompt_token_ids, *request.resumed_token_ids)
        # The last token is always computed, to sample from.
        num_blocks = min(
            max(source.num_blocks for source in others),
            (len(token_ids) - 1) // self._block_size,
        )
        if num_blocks <= 0:
            return None
        prefix = token_ids[: num_blocks * self._block_size]
        hashes = request.identity(self._namespace).hash_blocks(prefix, self._block_size)
        return _Prompt(request.request_id, tuple(hashes), others)

    async def _bring(self, prompt: _Prompt, pins: list[int], report: PrefixFetchReport) -> None:
        for _ in range(_MAX_ROUNDS):
            pin_id, found = await self._engine.pin_cached(prompt.block_hashes)
            pins.append(pin_id)
            sources = [
                source
                for source in prompt.sources
                if source.num_blocks > found.num_blocks and self._attempts.allows(source)
            ]
            if not sources or found.num_blocks == len(prompt.block_hashes):
                return
            report.attempted = True
            key = prompt.block_hashes[found.num_blocks]
            flight = self._flights.get(key)
            if flight is None:
                await self._lead(key, prompt, sources, found.num_blocks, pins, report)
                return
            self._attempts.joined()
            if await asyncio.shield(flight) is _FlightEnd.NOTHING_CAME:
                return

    async def _lead(
        self,
        key: bytes,
        prompt: _Prompt,
        sources: Sequence[PrefixSource],
        num_local: int,
        pins: list[int],
        report: PrefixFetchReport,
    ) -> None:
        """Fetch the blocks; other requests for the same blocks wait for it."""
        flight: asyncio.Future[_FlightEnd] = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        end = _FlightEnd.CANCELLED
        try:
            await self._fetch(prompt, sources, num_local, pins, report)
            end = _FlightEnd.OVER if report.num_tokens else _FlightEnd.NOTHING_CAME
        finally:
            del self._flights[key]
            flight.set_result(end)

    async def _fetch(
        self,
        prompt: _Prompt,
        sources: Sequence[PrefixSource],
        num_local: int,
        pins: list[int],
        report: PrefixFetchReport,
    ) -> None:
        """Ask peers one after the other, the longest claim first, until one has sent blocks."""
        missing = prompt.block_hashes[num_local:]
        patience_ms = max(
            self._settings.reuse_patience_ms,
            self._costs.compute_ms(len(missing) * self._block_size),
        )
        deadline_s = time.monotonic() + patience_ms / 1e3
        for source in sorted(sources, key=lambda source: -source.num_blocks):
            if time.monotonic() >= deadline_s:
                return
            fetched = await self._attempts.run(
                source,
                missing[: source.num_blocks - num_local],
                first_block=num_local,
                request_id=prompt.request_id,
                deadline_s=deadline_s,
            )
            if fetched is not None:
                pins.append(fetched.pin_id)
                report.first_token = num_local * self._block_size
                report.num_tokens = fetched.num_blocks * self._block_size
                report.num_bytes = fetched.num_bytes
                report.source = source.worker.name
                return

    async def _unpin(self, pins: Sequence[int]) -> None:
        for pin_id in pins:
            await self._engine.unpin(pin_id)
