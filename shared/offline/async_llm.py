"""vLLM's engine for programs with an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shared.engine.engine_thread import EngineThread
from shared.errors import InternalError, InvalidRequestError
from shared.offline.loaded import LoadedModel
from shared.offline.refused import Refusing, refuse_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from shared.engine.request_stream import RequestStream
    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.request import EngineRequest
    from shared.offline.engine_args import EngineArgs
    from shared.offline.outputs import RequestOutput
    from shared.offline.running import RunningRequest
    from shared.offline.sampling_params import SamplingParams


class AsyncLLM(Refusing):
    """Answers many prompts at a time; the engine runs in a thread of its own.

    The first call starts the thread, in the event loop that all later calls must come from.
    `shutdown` ends it.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Take a loaded model, and own it."""
        self.model = model
        self._thread = EngineThread(model.core.engine)
        self._starting: asyncio.Task[None] | None = None
        self._running: dict[str, RunningRequest] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> AsyncLLM:
        """Load a model and return its engine.

        Raises:
            ConfigError, ModelLoadError: it cannot be run like this.
        """
        return cls(LoadedModel(engine_args.settings()))

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: object = None,
        tokenization_kwargs: object = None,
        trace_headers: object = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the answers to a prompt as they grow. Leaving the loop early ends the request.

        Raises:
            InvalidRequestError: the id is in use, or the request cannot be served.
        """
        refuse_adapter(lora_request)
        if request_id in self._running:
            raise InvalidRequestError(f"request {request_id} is running already")
        await self._started()
        running, parts = await asyncio.to_thread(
            self.model.start, request_id, prompt, sampling_params, priority=priority
        )
        self._running[request_id] = running
        events: asyncio.Queue[tuple[str, EngineEvent | BaseException]] = asyncio.Queue()
        followers = [asyncio.create_task(self._follow(part, events)) for part in parts]
        try:
            while not running.is_finished:
                engine_id, event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                if running.take(engine_id, event):
                    await self._thread.abort(engine_id)
                output = running.output({engine_id})
                if output is not None:
                    yield output
        finally:
            self._running.pop(request_id, None)
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators end with what there is. Unknown ids are ignored."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            running = self._running.get(each)
            for engine_id in () if running is None else list(running.answers):
                await self._thread.abort(engine_id)

    async def get_tokenizer(self) -> Any:
        """Return the model's tokenizer as transformers has it."""
        from transformers import AutoTokenizer  # noqa: PLC0415 two seconds, and rarely used

        return await asyncio.to_thread(AutoTokenizer.from_pretrained, self.model.folder)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; return whether none was in use."""
        await self._started()
        if self._running:
            return False
        await self._thread.reset_prefix_cache()
        return True

    async def check_health(self) -> None:
        """Return if requests can be served.

        Raises:
            InternalError: the engine has ended.
        """
        await self._started()
        if self.errored:
            raise InternalError("the engine has ended; its log says why")

    @property
    def is_running(self) -> bool:
        """Whether requests can be served, or will be with the first call."""
        return self._starting is None or self._thread.healthy

    @property
    def errored(self) -> bool:
        """Whether an error has ended the engine."""
        return not self.is_running

    async def aclose(self) -> None:
        """End the thread and free the engine's memory."""
        await self._thread.stop()
        self.model.close()

    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread and free the engine's memory; running requests fail.

        In an event loop that goes on, `aclose` is the one to await.
        """
        self._thread.join()
        self.model.close()

    async def _started(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._thread.start())
        await asyncio.shield(self._starting)

    async def _follow(
        self,
        part: EngineRequest,
        events: asyncio.Queue[tuple[str, EngineEvent | BaseException]],
    ) -> None:
        """Put an answer's events, or the error that it could not be computed for, into a queue."""
        try:
            ready = await self.model.core.grammars.ready(part)
            stream: RequestStream = await self._thread.submit(ready)
            try:
                async for event in stream:
                    events.put_nowait((part.request_id, event))
            finally:
                await stream.aclose()
        except Exception as error:  # noqa: BLE001 the request's reader raises it
            events.put_nowait((part.request_id, error))
