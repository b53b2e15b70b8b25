"""The decode worker's side of a hand-off: finds a prefill worker that fills a prompt's blocks."""

from __future__ import annotations

import time
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog
from prometheus_client import Counter

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from services.decode.hidden import HiddenInbox
from services.decode.layer_choice import LayerChoice, LayerMode
from services.decode.prefill_attempt import PrefillAttempt
from services.decode.tracing import trace_transfer, under
from shared.errors import (
    AdapterNotLoadedError,
    BatonError,
    DeadlineError,
    DrainingError,
    IncompatiblePeerError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    WorkerLostError,
)
from shared.request.sampling_params import SamplingParams
from shared.request.wire import sampling_to_wire
from shared.rpc.retry_budget import RetryBudget
from shared.rpc.wire import worker_id_from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from baton.v1 import common_pb2, decode_pb2
    from baton.v1.transfer_pb2 import TransferTicket
    from services.decode.hidden import HiddenPolicy
    from services.decode.prefill_attempt import Call, Destination, HandOffReport
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.identity import WorkerId
    from shared.rpc.channel import ChannelPool
    from shared.telemetry.tracing import Span
    from shared.worker.peers.breaker import PeerBreaker
    from shared.worker.peers.peers import Peer, PeerBook

log = structlog.get_logger(__name__)

#: For a part of a prompt, whose next token is known.
_ONE_TOKEN = sampling_to_wire(SamplingParams(temperature=0.0, max_tokens=1))

#: Progress messages that a prefill worker is asked to send per `stall_s`.
_SIGNS_PER_STALL = 4


class AttemptOutcome(StrEnum):
    """How one attempt at one prefill worker ended; the label of a metric."""

    OK = "ok"
    #: Gone, silent, or too late.
    LOST = "lost"
    #: It takes no new work.
    DRAINING = "draining"
    #: It refused, or what it sent cannot be used.
    FAILED = "failed"


class HandOff:
    """Gets the KV of prompts from prefill workers."""

    def __init__(
        self,
        *,
        peers: PeerBook,
        channels: ChannelPool,
        breaker: PeerBreaker,
        metrics: CollectorRegistry,
        own_source: Callable[[int], common_pb2.PrefixSource],
        timeout_s: float,
        stall_s: float,
        max_attempts: int,
        layers: LayerMode = LayerMode.OFF,
        hidden: HiddenPolicy | None = None,
    ) -> None:
        """`own_source` returns this worker as the holder of a number of a prompt's blocks.

        All attempts for one prompt share `timeout_s`. An attempt fails after `stall_s` without
        progress of its worker.
        """
        self._peers = peers
        self._channels = channels
        self._breaker = breaker
        self._own_source = own_source
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._max_attempts = max_attempts
        self._layers = LayerChoice(layers)
        #: Whether hidden states are asked for; None: never.
        self.hidden = hidden
        self._retries = RetryBudget()
        self._attempts = Counter(
            "baton_hand_off_attempts",
            "Attempts to have a prompt computed by a prefill worker.",
            ["outcome"],
            registry=metrics,
        )

    async def fetch(
        self,
        request: decode_pb2.DecodeRequest,
        to: Destination,
        report: HandOffReport,
        span: Span | None = None,
    ) -> AsyncGenerator[prefill_pb2.FirstToken]:
        """Have a prompt computed elsewhere, and its blocks filled.

        Yields the first token as soon as a prefill worker has it, once, then goes on until the
        blocks are complete and verified, every candidate has failed, or the time is up; `report`
        tells which. After the iterator has ended or was closed, no transfer writes to the blocks.
        """
        deadline_s = time.monotonic() + self._timeout_s
        self._retries.earn()
        num_attempts = 0
        emitted = False
        for candidate in request.prefill_candidates:
            worker = worker_id_from_wire(candidate.worker)
            remaining_s = deadline_s - time.monotonic()
            if num_attempts >= self._max_attempts or remaining_s <= 0:
                return
            if not self._breaker.begin(worker):
                continue
            num_attempts += 1
            tokens = self._attempt(
                request, worker, candidate.address, to, remaining_s, report, span
            )
            try:
                # Closed by us, not by the garbage collector: the caller will use the blocks.
                async with aclosing(tokens):
                    async for first_token in tokens:
                        # A second prefill worker samples the same one: it was streamed already.
                        if not emitted:
                            emitted = True
                            yield first_token
            except BatonError as error:
                self._blame(worker, candidate.address, error, request.request_id)
                if not self._retries.spend():
                    return
            else:
                self._attempts.labels(AttemptOutcome.OK.value).inc()
                self._breaker.succeeded(worker)
                return
            finally:
                self._breaker.gave_up(worker)

    async def _attempt(
        self,
        request: decode_pb2.DecodeRequest,
        worker: WorkerId,
        address: str,
        to: Destination,
        timeout_s: float,
        report: HandOffReport,
        parent: Span | None,
    ) -> AsyncGenerator[prefill_pb2.FirstToken]:
        began_s = time.monotonic()
        with under(parent, "decode.hand_off", worker=worker.name) as span:
            peer = await self._peers.meet(worker, address, timeout_s=min(self._stall_s, timeout_s))
            if request.HasField("adapter") and not peer.knows_adapters:
                raise AdapterNotLoadedError(f"{worker} is older than adapters")
            opened_s = time.monotonic()
            timeout_s = max(0.0, timeout_s - (opened_s - began_s))
            attempt = PrefillAttempt(
                peer,
                request_id=request.request_id,
                to=to,
                timeout_s=timeout_s,
                stall_s=self._stall_s,
                by_layers=peer.sliced is not None and self._layers.wants_layers(worker),
                open_states=self._states_opener(request, to.hidden, timeout_s),
            )

            def start(ticket: TransferTicket, states: HiddenInbox | None) -> Call:
                return self._call(request, peer, ticket, states, to, timeout_s, span)

            async with aclosing(attempt.run(start, report)) as tokens:
                async for token in tokens:
                    if span is not None:
                        span.event("first_token", time.monotonic())
                    yield token
            self._layers.learn(worker, report, by_layers=attempt.by_layers)
            if self.hidden is not None and report.done is not None and not to.is_part:
                self.hidden.computed(len(request.token_ids), report.done)
            if span is not None:
                trace_transfer(span, report, opened_s)

    def _states_opener(
        self, request: decode_pb2.DecodeRequest, states: PlacedHidden | None, timeout_s: float
    ) -> Callable[[Peer], Awaitable[HiddenInbox]] | None:
        policy = self.hidden
        if policy is None or states is None:
            return None
        return lambda peer: HiddenInbox.open(
            policy,
            states,
            peer,
            request_id=request.request_id,
            num_tokens=len(request.token_ids),
            timeout_s=timeout_s,
        )

    def _blame(self, worker: WorkerId, address: str, error: BatonError, request_id: str) -> None:
        """Count and log the failure; report it to the breaker if it is the worker's.

        A peer that may be lost or restarted is forgotten: the next attempt shakes hands again.
        """
        outcome = AttemptOutcome.FAILED
        match error:
            case DrainingError():
                outcome = AttemptOutcome.DRAINING
                self._breaker.failed(worker, surely=True)
            case WorkerLostError() | DeadlineError():
                outcome = AttemptOutcome.LOST
                self._breaker.failed(worker, surely=True)
                self._peers.forget(address)
            case IncompatiblePeerError():
                self._breaker.failed(worker, surely=True)
                self._peers.forget(address)
            case InvalidRequestError() | RequestCancelledError() | OverloadedError():
                pass
            case AdapterNotLoadedError():
                pass  # it serves other requests
            case _:
                self._breaker.failed(worker)
                self._peers.forget(address)
        self._attempts.labels(outcome.value).inc()
        log.warning(
            "prefill_failed",
            request_id=request_id,
            prefill_worker=str(worker),
            outcome=outcome.value,
            error=str(error),
        )

    def _call(
        self,
        request: decode_pb2.DecodeRequest,
        peer: Peer,
        ticket: TransferTicket,
        states: HiddenInbox | None,
        to: Destination,
        timeout_s: float,
        span: Span | None,
    ) -> Call:
        stub = prefill_pb2_grpc.PrefillStub(self._channels.get(peer.address))
        message = prefill_pb2.PrefillRequest(
            request_id=request.request_id,
            token_ids=request.token_ids[: to.num_tokens] if to.is_part else request.token_ids,
            sampling=_ONE_TOKEN if to.is_part else request.sampling,
            ticket=ticket,
            first_block=to.first_block,
            cache_salt=request.cache_salt,
            priority=request.priority,
            num_resumed_tokens=request.num_resumed_tokens,
            prefix_sources=request.prefix_sources,
            progress_interval_s=self._stall_s / _SIGNS_PER_STALL,
            wanted_states=None if states is None else states.wanted,
            embeds=request.embeds,
            adapter=request.adapter if request.HasField("adapter") else None,
        )
        if to.first_block and peer.shares_prefixes:
            # The KV of a chat's earlier answer is on this worker alone.
            message.prefix_sources.append(self._own_source(to.first_block))
        metadata = None if span is None else tuple(span.headers.items())
        return stub.Prefill(message, timeout=timeout_s, metadata=metadata)
