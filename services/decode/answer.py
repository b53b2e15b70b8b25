"""One answer on a decode worker: from the queue, over the hand-off, to the last token."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from baton.v1 import decode_pb2
from services.decode.account import Account
from services.decode.decider import PrefillPlace
from services.decode.prefill_attempt import Destination, HandOffReport
from shared.aside import aside
from shared.engine.sequence.events import Admitted, Failed, Landing, NewTokens
from shared.engine.sequence.request import EngineRequest, KVSource
from shared.engine.sequence.stop import finish_reason_for
from shared.request.adapter_ref import adapter_from_wire
from shared.request.answer import num_candidates
from shared.request.embeds_wire import embeds_from_wire, ids_from_wire
from shared.request.wire import (
    finish_reason_to_wire,
    logprobs_to_wire,
    prompt_logprobs_to_wire,
    sampling_from_wire,
)
from shared.rpc.wire import worker_id_from_wire
from shared.worker.peers.wire import split_resumed
from shared.worker.reuse.source import sources_from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from baton.v1 import prefill_pb2
    from services.decode.decider import Decider
    from services.decode.hand_off import HandOff
    from shared.engine.grammar.compiler import GrammarCompiler
    from shared.engine.prompt_hidden import HiddenWish
    from shared.engine.thread.engine_thread import EngineThread
    from shared.engine.thread.request_stream import RequestStream
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout
    from shared.request.sampling_params import SamplingParams
    from shared.telemetry.tracing import Span
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.reuse.prefix_reuse import PrefixReuse


class DecodeCall:
    """Owns one request on this worker: closing `run` frees everything that it holds anywhere."""

    def __init__(
        self,
        request: decode_pb2.DecodeRequest,
        span: Span | None = None,
        *,
        worker: WorkerId,
        engine: EngineThread,
        hand_off: HandOff,
        reuse: PrefixReuse,
        grammars: GrammarCompiler,
        adapters: WorkerAdapters,
        decider: Decider,
        layout: KVLayout,
        max_model_len: int,
    ) -> None:
        """`worker`: this one, which never hands a prompt over to itself."""
        others = [
            candidate
            for candidate in request.prefill_candidates
            if worker_id_from_wire(candidate.worker) != worker
        ]
        del request.prefill_candidates[:]
        request.prefill_candidates.extend(others)
        self._request = request
        self._span = span
        self._sampling: SamplingParams = sampling_from_wire(request.sampling)
        self._engine = engine
        self._hand_off = hand_off
        self._reuse = reuse
        self._grammars = grammars
        self._adapters = adapters
        self._adapter = None
        if request.HasField("adapter"):
            self._adapter = adapter_from_wire(request.adapter)
        self._decider = decider
        self._layout = layout
        self._max_model_len = max_model_len
        #: As on the wire: `_engine_request` says which are embeddings.
        self._prompt, self._resumed = split_resumed(request.token_ids, request.num_resumed_tokens)
        self.account = Account(
            num_prompt_tokens=len(self._prompt), num_resumed_tokens=len(self._resumed)
        )

    async def run(self) -> AsyncGenerator[decode_pb2.DecodeResponse]:
        """Stream the answer; the last piece has a finish reason."""
        async with self._adapters.held(self._adapter), aclosing(self._run()) as pieces:
            async for piece in pieces:
                yield piece

    async def _run(self) -> AsyncGenerator[decode_pb2.DecodeResponse]:
        stream = await self._submit()
        async with aclosing(stream):
            async for event in stream:
                match event:
                    case Admitted() | Landing() if not self.account.admitted:
                        async with aclosing(self._admit(event)) as pieces:
                            async for piece in pieces:
                                yield piece
                                if piece.finish_reason:
                                    return
                    case NewTokens(prompt_logprobs=None):
                        yield self._piece(event)
                    case NewTokens():
                        size = num_candidates(event.prompt_logprobs or ())
                        yield await aside(size, partial(self._piece, event))
                    case Failed():
                        raise event.error
                    case _:
                        pass

    @property
    def _num_part(self) -> int:
        """Leading tokens that are computed elsewhere, if the rest is computed here; or 0."""
        request = self._request
        num_tokens = request.num_handed_tokens // self._layout.block_size * self._layout.block_size
        is_part = 0 < num_tokens < len(request.token_ids)
        may_split = self._layout.can_split and not request.embeds and not self._resumed
        if self._sampling.prompt_logprobs is not None:
            may_split = False
        return num_tokens if is_part and may_split else 0

    async def _submit(self) -> RequestStream:
        """Queue the request; fetch its prefix from peers first if this worker computes the prompt.

        Before that, wait for the request's grammar: an invalid grammar then costs no other work.
        """
        ready = await self._grammars.ready(self._engine_request())
        request = self._request
        elsewhere = request.prefill_candidates or self._sampling.prompt_logprobs is not None
        sources = () if elsewhere else sources_from_wire(request.prefix_sources)
        stream, fetch = await self._reuse.submit(ready, sources=sources)
        self.account.fetched(fetch)
        return stream

    def _engine_request(self) -> EngineRequest:
        request = self._request
        embeds = embeds_from_wire(request.embeds)
        return EngineRequest(
            request_id=request.request_id,
            prompt_token_ids=tuple(ids_from_wire(self._prompt, embeds)),
            embeds=embeds,
            resumed_token_ids=self._resumed,
            sampling=self._sampling,
            priority=request.priority,
            max_itl_ms=request.max_itl_ms,
            cache_salt=request.cache_salt,
            adapter=self._adapter,
            kv_source=KVSource.TRANSFER if request.prefill_candidates else KVSource.COMPUTE,
            hidden=self._hidden_wish(),
        )

    def _hidden_wish(self) -> HiddenWish | None:
        policy, request = self._hand_off.hidden, self._request
        if policy is None or not request.prefill_candidates or request.embeds or self._num_part:
            return None  # heads guess from tokens
        return policy.wish(len(request.token_ids), self._sampling)

    async def _admit(self, event: Admitted | Landing) -> AsyncGenerator[decode_pb2.DecodeResponse]:
        """The sequence has its blocks, or slots in host memory until there is room: fetch what is
        missing, or let the engine compute it.
        """
        self.account.admit(event.num_cached_tokens, event.at_s)
        num_tokens = self._num_part or len(self._request.token_ids)
        place = self._decider.place(
            num_uncached_tokens=num_tokens - event.num_cached_tokens,
            num_candidates=len(self._request.prefill_candidates),
            is_kept=self._request.keeps_prompt,
        )
        if place is PrefillPlace.REMOTE and self._num_part:
            place, self.account.num_part = PrefillPlace.SPLIT, self._num_part
        self.account.place = place
        if place in (PrefillPlace.REMOTE, PrefillPlace.SPLIT):
            async with aclosing(self._fetch(event)) as pieces:
                async for piece in pieces:
                    yield piece
        elif place is PrefillPlace.LOCAL_SHORT:
            await self._engine.fail_transfer(self._request.request_id)
        # No prefill worker needs them any more, and the engine has its own.
        self._request.ClearField("embeds")

    async def _fetch(self, event: Admitted | Landing) -> AsyncGenerator[decode_pb2.DecodeResponse]:
        first_block = event.num_cached_tokens // self._layout.block_size
        num_part = self._num_part
        num_tokens = num_part or len(self._request.token_ids)
        moved = self._layout.moved(first_block, num_tokens)
        tables = zip(event.tables, moved, strict=True)
        report = HandOffReport()
        first_token: int | None = None
        tokens = self._hand_off.fetch(
            self._request,
            Destination(
                tables=tuple(table[blocks.start : blocks.stop] for table, blocks in tables),
                moved=moved,
                first_block=first_block,
                num_tokens=num_tokens,
                is_part=bool(num_part),
                hidden=event.hidden,
                memory=event.memory if isinstance(event, Landing) else None,
            ),
            report,
            self._span,
        )
        # Closed before the code below: no transfer may write to blocks that the engine uses.
        async with aclosing(tokens):
            async for token in tokens:
                if not num_part:
                    first_token = token.token_id
                    yield self._first_piece(token)
        self.account.settle(report)
        if report.succeeded and num_part:
            await self._engine.complete_transfer(self._request.request_id, num_tokens=num_part)
        elif report.succeeded:
            await self._engine.complete_transfer(
                self._request.request_id,
                first_token,
                report.states_from,
                late_groups=report.late_groups,
            )
        else:
            await self._engine.fail_transfer(self._request.request_id, first_token)

    def _first_piece(self, token: prefill_pb2.FirstToken) -> decode_pb2.DecodeResponse:
        reason = finish_reason_for(
            token.token_id,
            self._sampling,
            num_output_tokens=len(self._resumed) + 1,
            num_tokens=len(self._request.token_ids) + 1,
            max_model_len=self._max_model_len,
        )
        piece = decode_pb2.DecodeResponse(
            token_ids=[token.token_id], finish_reason=finish_reason_to_wire(reason)
        )
        if token.HasField("logprobs"):
            piece.logprobs.append(token.logprobs)
        if token.hidden_states:
            piece.hidden_states.append(token.hidden_states)
        if token.HasField("prompt_logprobs"):
            piece.prompt_logprobs.CopyFrom(token.prompt_logprobs)
        if reason is not None and token.token_id in self._sampling.final_token_ids:
            piece.stop_token_id = token.token_id
        return self._accounted(piece)

    def _piece(self, event: NewTokens) -> decode_pb2.DecodeResponse:
        if event.num_draft_tokens:
            self.account.guessed(event.num_draft_tokens, event.num_accepted_tokens)
        piece = decode_pb2.DecodeResponse(
            token_ids=event.token_ids,
            logprobs=[logprobs_to_wire(position) for position in event.logprobs],
            hidden_states=event.hidden_states,
            finish_reason=finish_reason_to_wire(event.finish_reason),
            stop_token_id=event.stop_token_id,
        )
        if event.prompt_logprobs is not None:
            piece.prompt_logprobs.CopyFrom(prompt_logprobs_to_wire(event.prompt_logprobs))
        return self._accounted(piece)

    def _accounted(self, piece: decode_pb2.DecodeResponse) -> decode_pb2.DecodeResponse:
        self.account.count(len(piece.token_ids))
        # A caller that finds a stop string never sees the last piece: usage is sent early, too.
        if piece.finish_reason or self.account.take_news():
            piece.usage.CopyFrom(self.account.usage())
            piece.timings.CopyFrom(self.account.timings())
        return piece
