"""One prefill: follows the engine, pushes blocks as they become final, reports the first token."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from baton.v1 import prefill_pb2
from services.prefill.publisher import Publisher
from shared.aside import aside
from shared.engine.sequence.events import (
    Admitted,
    Computed,
    Failed,
    LayersComputed,
    NewTokens,
)
from shared.errors import InternalError, TransferError
from shared.request.answer import num_candidates
from shared.request.wire import logprobs_to_wire, prompt_logprobs_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from services.prefill.hidden_sender import HiddenSender
    from shared.connector.group.base import SequenceOutbound
    from shared.engine.sequence.events import EngineEvent
    from shared.worker.peers.outgoing import SendOrder
    from shared.worker.reuse.prefix_reuse import PrefixFetchReport

log = structlog.get_logger(__name__)


class PrefillJob:
    """Owns the outbound transfer of one request. `close` must be awaited, however `run` ended."""

    def __init__(
        self,
        *,
        request_id: str,
        order: SendOrder,
        block_size: int,
        num_tokens: int,
        prefix_fetch: PrefixFetchReport,
        timeout_s: float,
        progress: prefill_pb2.PrefillProgress,
        states: HiddenSender | None = None,
    ) -> None:
        """`order`: the blocks of the prompt to send.

        `prefix_fetch` has ended: its time is no part of the queue's. The job keeps `progress` up to
        date. All waits together end within `timeout_s`. With `states`, hidden states are sent, too.
        """
        self._request_id = request_id
        self._order = order
        self._block_size = block_size
        self.num_tokens = num_tokens
        self.prefix_fetch = prefix_fetch
        self._deadline_s = time.monotonic() + timeout_s
        self._progress = progress
        self._outbound: SequenceOutbound | None = None
        self._publisher: Publisher | None = None
        self._states = states
        #: The receiver has the KV. Hidden states may be missing; no request has to wait for them.
        self.is_done = False
        self.num_cached_tokens = 0
        self.arrived_s = self.admitted_s = self.sampled_s = time.monotonic()

    def stages(self, now_s: float) -> Iterator[tuple[str, float, float]]:
        """Yield name, begin and end [s] of each stage; a transfer ends at `now_s`."""
        fetch_s = self.prefix_fetch.duration_ms / 1e3
        if self.prefix_fetch.attempted:
            yield "prefix_fetch", self.arrived_s - fetch_s, self.arrived_s
        yield "queue", self.arrived_s, self.admitted_s
        yield "compute", self.admitted_s, self.sampled_s
        sent_s = None if self._publisher is None else self._publisher.started_s
        if sent_s is not None:
            yield "transfer", sent_s, now_s

    @property
    def queue_s(self) -> float:
        """Seconds from the arrival in the queue, after a prefix fetch, to the first step."""
        return self.admitted_s - self.arrived_s

    @property
    def compute_s(self) -> float:
        """Seconds from the first step to the first token."""
        return self.sampled_s - self.admitted_s

    @property
    def num_fetched_tokens(self) -> int:
        """Cached tokens that came from a peer for this request."""
        return self.prefix_fetch.num_used(self.num_cached_tokens)

    async def run(
        self, events: AsyncIterator[EngineEvent]
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        """Answer the call: the first token, then `done`.

        Raises:
            TransferError: the receiver refused, is gone, or took too long.
        """
        async for event in events:
            match event:
                case Admitted():
                    await self._begin(event)
                case Computed():
                    self._advance(event.num_computed_tokens)
                case LayersComputed():
                    self._advance_layers(event.num_layers)
                case NewTokens():
                    self.sampled_s = time.monotonic()
                    size = num_candidates(event.prompt_logprobs or ())
                    first = await aside(size, partial(_first_token, event))
                    yield prefill_pb2.PrefillResponse(first_token=first)
                case Failed():
                    raise event.error
        done = await self._finish()
        self.is_done = True
        yield prefill_pb2.PrefillResponse(done=done)
        await self._finish_states()

    async def close(self) -> None:
        """Stop sending. Once this returns, no block of the request is read."""
        if self._states is not None:
            await self._states.close()
        if self._publisher is not None:
            await self._publisher.close()

    @property
    def _remaining_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    async def _begin(self, event: Admitted) -> None:
        # The step that admits the request may have begun just before the request arrived.
        self.admitted_s = max(self.arrived_s, event.at_s)
        self.num_cached_tokens = event.num_cached_tokens
        self._outbound = await self._order.connect(self._remaining_s)
        self._publisher = Publisher(
            self._outbound,
            tables=event.tables,
            moved=self._order.moved,
            progress=self._progress,
        )
        if self._states is not None:
            self._states.begin(event, self._remaining_s)
        self._advance(event.num_final_tokens)

    def _advance(self, num_computed_tokens: int) -> None:
        if self._publisher is None:
            raise InternalError(f"request {self._request_id}: computed before it was admitted")
        self._progress.num_computed_tokens = num_computed_tokens
        num_final = num_computed_tokens // self._block_size
        if num_computed_tokens >= self.num_tokens:
            num_final = -(-self.num_tokens // self._block_size)
        self._publisher.advance(num_final)
        if self._states is not None and num_computed_tokens < self.num_tokens:
            self._states.advance(num_computed_tokens)

    def _advance_layers(self, num_layers: Sequence[int]) -> None:
        if self._publisher is not None:
            self._publisher.advance_layers(num_layers)

    async def _finish_states(self) -> None:
        """Send the rest of the hidden states, after the KV; a failure is logged only."""
        if self._states is None:
            return
        try:
            await self._states.finish(self._remaining_s)
        except TransferError as error:  # the decode worker does without states
            log.info("states_not_sent", request_id=self._request_id, error=str(error))

    async def _finish(self) -> prefill_pb2.PrefillDone:
        if self._publisher is None or self._outbound is None:
            raise InternalError(f"request {self._request_id}: ended before it was admitted")
        digest = await self._publisher.finish(self._remaining_s)
        return prefill_pb2.PrefillDone(
            digest=digest,
            num_blocks=self._outbound.num_blocks,
            num_bytes=self._outbound.num_bytes,
            cached_tokens=self.num_cached_tokens,
            queue_ms=self.queue_s * 1e3,
            compute_ms=self.compute_s * 1e3,
            transfer_ms=self._publisher.transfer_ms,
            prefix_fetch=self._fetch_to_wire(),
            sent_states=None if self._states is None else self._states.sent(),
        )

    def _fetch_to_wire(self) -> prefill_pb2.PrefixFetch | None:
        fetch = self.prefix_fetch
        if not fetch.attempted:
            return None
        return prefill_pb2.PrefixFetch(
            num_tokens=self.num_fetched_tokens,
            num_bytes=fetch.num_bytes,
            duration_ms=fetch.duration_ms,
            source=fetch.source,
        )


def _first_token(event: NewTokens) -> prefill_pb2.FirstToken:
    token = prefill_pb2.FirstToken(token_id=event.token_ids[0])
    if event.logprobs:
        token.logprobs.CopyFrom(logprobs_to_wire(event.logprobs[0]))
    if event.hidden_states:
        token.hidden_states = event.hidden_states[0]
    if event.prompt_logprobs is not None:
        token.prompt_logprobs.CopyFrom(prompt_logprobs_to_wire(event.prompt_logprobs))
    return token
