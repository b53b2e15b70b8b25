"""vLLM's engine for programs with an event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.engine.sequence.events import NewTokens
from shared.engine.thread.engine_thread import EngineThread
from shared.errors import InternalError, InvalidRequestError
from shared.offline.changing import Changes, require_mode
from shared.offline.loaded import LoadedModel
from shared.offline.refused import Refusing
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.request import EngineRequest
    from shared.engine.thread.request_stream import RequestStream
    from shared.offline.engine_args import EngineArgs
    from shared.offline.lora import LoRARequest
    from shared.offline.records.outputs import RequestOutput
    from shared.offline.records.sampling_params import SamplingParams
    from shared.offline.running import RunningRequest


@dataclass(slots=True)
class _Asked:
    """A request from its call to its end."""

    #: None: it begins.
    running: RunningRequest | None = None
    events: asyncio.Queue[tuple[str, EngineEvent | BaseException]] = field(
        default_factory=asyncio.Queue
    )
    #: Ids of the answers that the engine knows.
    given: set[str] = field(default_factory=set)
    is_aborted: bool = False

    def abort(self) -> list[str]:
        """End what the engine does not know yet; return the answers that it is to end."""
        self.is_aborted = True
        answers = () if self.running is None else self.running.answers
        for engine_id in answers:
            if engine_id not in self.given:
                end = NewTokens(
                    request_id=engine_id, token_ids=(), finish_reason=FinishReason.ABORT
                )
                self.events.put_nowait((engine_id, end))
        return [each for each in answers if each in self.given]


class AsyncLLM(Refusing):
    """Answers many prompts at a time; the engine runs in a thread of its own.

    The first call starts the thread, in the event loop that all later calls must come from.
    `shutdown` ends it.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Take a loaded model, and own it."""
        self.model = model
        self._changes = Changes(model)
        self._thread = EngineThread(model.core.engine)
        self._starting: asyncio.Task[None] | None = None
        self._running: dict[str, _Asked] = {}
        #: Set while no request runs, and while requests may begin.
        self._paused = False
        self._idle, self._may_begin = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._may_begin.set()

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
        start = partial(self.model.start, priority=priority, lora_request=lora_request)
        asked, running, parts = await self._begin(
            request_id, lambda: start(request_id, prompt, sampling_params)
        )
        followers = [asyncio.create_task(self._follow(part, asked)) for part in parts]
        try:
            while not running.is_finished:
                engine_id, event = await asked.events.get()
                if isinstance(event, BaseException):
                    raise event
                if running.take(engine_id, event):
                    await self._thread.abort(engine_id)
                output = running.output({engine_id})
                if output is not None:
                    yield output
        finally:
            self._end(request_id)
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their iterators end with what there is. Unknown ids are ignored."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            asked = self._running.get(each)
            for engine_id in () if asked is None else asked.abort():
                await self._thread.abort(engine_id)

    async def get_tokenizer(self) -> Any:
        """Return the model's tokenizer as transformers has it.

        Raises:
            UnsupportedError: it is left out.
        """
        self.model.require_tokenizer()
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

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before its first request; return whether it was new.

        Raises:
            InvalidRequestError: it cannot be used with the model.
        """
        return await asyncio.to_thread(self.model.adapters.add, lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Take an adapter away; return whether it was there. Requests that run keep it."""
        return self.model.adapters.remove(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the numbers of all adapters."""
        return self.model.adapters.list()

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in host memory.

        Raises:
            InvalidRequestError: there is none of this number, or no memory for it.
        """
        return self.model.adapters.pin(lora_id)

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = False) -> None:
        """Compute nothing until `resume_generation`; requests that come wait.

        `mode`: running ones end (abort), finish (wait) or stop (keep). The cache is kept unless
        `clear_cache` says otherwise, since other weights never use it; with `keep` it always is.
        """
        if mode not in ("abort", "wait", "keep"):
            message = f"mode must be abort, wait or keep, not {mode!r}"
            raise InvalidRequestError(message, param="mode")
        self._paused = True
        await self._hold(mode)
        if clear_cache and mode != "keep" and not self._changes.is_sleeping:
            await self._thread.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """Let requests go on."""
        self._paused = False
        if not self._changes.is_sleeping:
            await self._thread.resume()
            self._may_begin.set()

    async def is_paused(self) -> bool:
        """Return whether requests wait."""
        return self._paused

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """See `LLMEngine.sleep`."""
        require_mode(mode, num_requests=0)
        async with self._changed(mode):
            await asyncio.to_thread(self._changes.sleep, level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """See `LLMEngine.wake_up`."""
        async with self._changed("wait"):
            return await asyncio.to_thread(self._changes.wake_up, tags)

    async def is_sleeping(self) -> bool:
        """Return whether memory was given back."""
        return self._changes.is_sleeping

    async def update_weights(self, request: Any, weight_version: str | None = None) -> None:
        """See `LLMEngine.update_weights`; running requests finish before."""
        async with self._changed("wait"):
            await asyncio.to_thread(self._changes.update_weights, request, weight_version)

    async def get_weight_version(self) -> str:
        """Return the version of the present weights."""
        return self.model.weight_version()

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        """See `LLMEngine.start_profile`."""
        await self._started()
        await self._thread.call(lambda _: self._changes.start_profile(profile_prefix))

    async def stop_profile(self) -> None:
        """See `LLMEngine.stop_profile`."""
        await self._thread.call(lambda _: self._changes.stop_profile())

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

    @asynccontextmanager
    async def _changed(self, mode: str) -> AsyncIterator[None]:
        """Let no request run in the context; afterwards a thread steps the engine that is there."""
        if not self._changes.is_sleeping:
            await self._hold(mode)
            await self._thread.stop()
        try:
            yield
        finally:
            if not self._changes.is_sleeping:
                self._thread = EngineThread(self.model.core.engine)
                self._starting = None
                if not self._paused:
                    self._may_begin.set()

    async def _begin(
        self, request_id: str, start: Callable[[], tuple[RunningRequest, list[EngineRequest]]]
    ) -> tuple[_Asked, RunningRequest, list[EngineRequest]]:
        """Enter a request as soon as the engine is neither paused nor asleep.

        Nothing changes the engine between that and the request's end.

        Raises:
            InvalidRequestError: the id is in use, or the request cannot be served.
        """
        while True:
            if request_id in self._running:
                raise InvalidRequestError(f"request {request_id} is running already")
            await self._may_begin.wait()
            await self._started()
            if request_id in self._running or not self._may_begin.is_set():
                continue
            asked = self._running[request_id] = _Asked()
            self._idle.clear()
            has_begun = False
            try:
                running, parts = await asyncio.to_thread(start)
                has_begun = self._may_begin.is_set()
            finally:
                if not has_begun:
                    self._end(request_id)
            if has_begun:
                asked.running = running
                if asked.is_aborted:
                    asked.abort()
                return asked, running, parts

    def _end(self, request_id: str) -> None:
        del self._running[request_id]
        if not self._running:
            self._idle.set()

    async def _hold(self, mode: str) -> None:
        """Let no request begin; return when none computes."""
        await self._started()
        self._may_begin.clear()
        if mode == "keep":
            await self._thread.pause()
            return
        if mode == "abort":
            await self.abort(list(self._running))
        # What a pause has stopped ends, too.
        await self._thread.resume()
        await self._idle.wait()

    async def _started(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._thread.start())
        await asyncio.shield(self._starting)

    async def _follow(self, part: EngineRequest, asked: _Asked) -> None:
        """Queue an answer's events, or the error that it could not be computed for."""
        try:
            ready = await self.model.core.grammars.ready(part)
            if asked.is_aborted:
                return
            # Before the engine gets it: orders to end it follow.
            asked.given.add(part.request_id)
            stream: RequestStream = await self._thread.submit(ready)
            try:
                async for event in stream:
                    asked.events.put_nowait((part.request_id, event))
            finally:
                await stream.aclose()
        except Exception as error:  # noqa: BLE001 the request's reader raises it
            asked.events.put_nowait((part.request_id, error))
