"""Vectors of an encoder, whose thread reads waiting texts in batches."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import structlog
import torch

from shared.errors import (
    BatonError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    RefusalReason,
    RequestCancelledError,
    UnavailableError,
    UnsupportedError,
)
from shared.model.encoders.base import TextBatch
from shared.pooling.base import Pooled, PoolingKind
from shared.pooling.text_queue import TextQueue, WaitingText

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.encoders.base import TextEncoder
    from shared.pooling.base import PoolingFacts, PoolRequest
    from shared.pooling.head import Head

log = structlog.get_logger(__name__)


class EncoderPooler:
    """See `Pooler`. Owns its thread: `start` it, and `close` it.

    Memory is bounded: states are those of one batch, and waiting texts are at most `max_waiting`.
    """

    def __init__(
        self,
        model: TextEncoder,
        head: Head,
        *,
        max_batch_tokens: int = 4096,
        max_waiting: int = 8192,
        fingerprint: str = "",
    ) -> None:
        """A batch has at most `max_batch_tokens`, or one text that is longer.

        `fingerprint`: equal on two hosts exactly if their computations are equal.
        """
        self.fingerprint = fingerprint
        self._model, self._head = model, head
        self._max_waiting = max_waiting
        self._queue = TextQueue(max_batch_tokens)
        #: Texts that are being read, by id. Guarded by `_changed`, as the queue is.
        self._reading: dict[str, WaitingText] = {}
        self._waiting: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._paused = False
        #: Whether a batch is being read. Guarded, too.
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)

    @property
    def facts(self) -> PoolingFacts:
        """See `Pooler.facts`."""
        return self._head.facts

    def start(self) -> None:
        """Begin to read texts."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after its batch. Texts that wait get `UnavailableError`."""
        with self._changed:
            self._closed = True
            left = self._queue.clear()
            self._changed.notify_all()
        for text in left:
            _tell(text, partial(_fail, text, UnavailableError("the encoder is being closed")))
        if self._thread.ident is not None:
            self._thread.join()

    async def pause(self) -> None:
        """Return when no text is read; those that wait stay. Safe to repeat."""
        with self._changed:
            self._paused = True
        await asyncio.to_thread(self._wait_idle)

    async def resume(self) -> None:
        """Go on. Safe to repeat."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    async def pool(self, request: PoolRequest) -> Pooled:
        """See `Pooler.pool`.

        Raises, besides: OverloadedError: too many texts wait.
        """
        if request.adapter is not None:
            message = f"{request.adapter.name}: a model that reads whole texts has no adapters"
            raise UnsupportedError(message, param="model")
        self._head.check(request)
        text = WaitingText(request, asyncio.get_running_loop().create_future())
        with self._changed:
            self._admit(text)
            self._changed.notify_all()
        try:
            return await text.done
        finally:
            self._forget(request.request_id)

    def abort(self, request_id: str) -> None:
        """See `Pooler.abort`."""
        with self._changed:
            text = self._queue.remove(request_id) or self._reading.get(request_id)
        if text is not None:
            _fail(text, RequestCancelledError(f"request {request_id} was aborted"))

    def _admit(self, text: WaitingText) -> None:
        request_id = text.request.request_id
        if self._closed:
            raise UnavailableError("the encoder is closed")
        if request_id in self._waiting:
            raise InvalidRequestError(f"request {request_id} is here already", param="request_id")
        if len(self._queue) >= self._max_waiting:
            raise OverloadedError(
                f"{len(self._queue)} texts wait for the encoder", reason=RefusalReason.QUEUE_FULL
            )
        self._waiting.add(request_id)
        self._queue.add(text)

    def _forget(self, request_id: str) -> None:
        with self._changed:
            self._queue.remove(request_id)
            self._waiting.discard(request_id)

    def _wait_idle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)

    def _run(self) -> None:
        while batch := self._next():
            try:
                results = self._read(batch)
            except Exception as error:  # noqa: BLE001 the texts' callers get it
                log.warning("encoder_failed", num_texts=len(batch), error=repr(error))
                reason = error if isinstance(error, BatonError) else InternalError(repr(error))
                for text in batch:
                    _tell(text, partial(_fail, text, reason))
            else:
                for text, result in zip(batch, results, strict=True):
                    _tell(text, partial(_complete, text, result))

    def _next(self) -> list[WaitingText]:
        """Wait for texts; return a batch, or nothing once the pooler is closed."""
        with self._changed:
            self._reading.clear()
            self._busy = False
            self._changed.notify_all()
            while True:
                batch = [] if self._paused else self._queue.take()
                if batch or self._closed:
                    break
                self._changed.wait()
            self._busy = bool(batch)
            self._reading = {text.request.request_id: text for text in batch}
            return batch

    @torch.inference_mode()
    def _read(self, batch: list[WaitingText]) -> list[Pooled | BatonError]:
        lengths = [text.num_tokens for text in batch]
        states = self._model.encode(_packed([text.request for text in batch], lengths))
        results: list[Pooled | BatonError] = []
        for text, own in zip(batch, states.split(lengths), strict=True):
            rows = _pooled(own, self._head.kind_of(text.request.task))
            data = self._head.finish(text.request, rows)
            if data.isfinite().all():
                results.append(Pooled(data))
            else:
                message = f"request {text.request.request_id}: the model gave no finite states"
                results.append(InternalError(message))
        return results


def _packed(requests: list[PoolRequest], lengths: list[int]) -> TextBatch:
    token_ids = [token for request in requests for token in request.token_ids]
    types: Tensor | None = None
    if any(request.token_type_ids is not None for request in requests):
        of_all = (request.token_type_ids or (0,) * len(request.token_ids) for request in requests)
        types = torch.tensor([kind for own in of_all for kind in own])
    return TextBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        lengths=lengths,
        token_types=types,
    )


def _pooled(states: Tensor, kind: PoolingKind | None) -> Tensor:
    """Return float32 [1 or num_tokens, hidden]."""
    match kind:
        case PoolingKind.LAST:
            return states[-1:].float()
        case PoolingKind.CLS:
            return states[:1].float()
        case PoolingKind.MEAN:
            return states.sum(dim=0, keepdim=True, dtype=torch.float32) / len(states)
        case None:
            return states.to(torch.float32, copy=True)


def _tell(text: WaitingText, message: partial[None]) -> None:
    loop = text.done.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(message)


def _complete(text: WaitingText, result: Pooled | BatonError) -> None:
    if isinstance(result, BatonError):
        _fail(text, result)
    elif not text.done.done():
        text.done.set_result(result)


def _fail(text: WaitingText, error: BatonError) -> None:
    if not text.done.done():
        text.done.set_exception(error)
