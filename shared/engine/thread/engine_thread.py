"""An engine in a thread of its own, called from one event loop.

The loop only moves messages. Commands go to the thread through a queue on which an idle engine
sleeps. The events of a step come back in one callback, in order.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from shared.engine.cores import NO_LEASE
from shared.engine.priority import give_way
from shared.engine.sequence.events import Failed
from shared.engine.thread.command import Command, call_all, resolve
from shared.engine.thread.progress import EngineProgress
from shared.engine.thread.request_stream import RequestStream, is_last
from shared.errors import InternalError, RankError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.cores import Cores
    from shared.engine.engine import Engine
    from shared.engine.engine_stats import EngineStats
    from shared.engine.sequence.events import CacheChange, EngineEvent
    from shared.engine.sequence.request import EngineRequest
    from shared.kv.prefix_cache import PrefixBlocks
    from shared.kv.tier import BlockTier

log = structlog.get_logger(__name__)

T = TypeVar("T")


class EngineThread:
    """The engine's asyncio side. `start` first; `stop` before the loop closes."""

    def __init__(self, engine: Engine, cores: Cores = NO_LEASE) -> None:
        """`cores`: those that steps run on; lent while there is no step to do."""
        self._engine = engine
        self._cores = cores
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._listeners: list[Callable[[CacheChange], None]] = []
        self._promotions: set[asyncio.Future[None]] = set()
        self._stats = engine.stats()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._broken = asyncio.Event()
        #: Whether no step follows until `resume`. Written in the thread.
        self._paused = False
        #: The thread's progress; may be read in any thread.
        self.progress = EngineProgress()
        self._stopped_by: Exception | None = UnavailableError("the engine has not been started")

    @property
    def healthy(self) -> bool:
        """Whether requests are being served."""
        return self._stopped_by is None

    @property
    def is_paused(self) -> bool:
        """Whether no step begins until `resume`."""
        return self._paused

    async def start(self) -> None:
        """Start stepping."""
        self._loop, self._stopped_by = asyncio.get_running_loop(), None
        if self._engine.cached.offload is not None:
            self._engine.cached.offload.on_news(self.wake)
        if self._engine.adapters.store is not None:
            self._engine.adapters.store.on_news = self.wake
        self._thread.start()
        self._engine.followers.on_lost(self.wake)

    async def stop(self) -> None:
        """Finish the running step, fail the remaining requests, and end the thread.

        Safe to repeat.
        """
        if self._loop is None:
            return
        await asyncio.to_thread(self.join)

    def join(self) -> None:
        """Finish the running step and end the thread; the loop fails the remaining requests.

        Blocks; may be called in any thread, and before `start`.
        """
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._post([partial(self._end, UnavailableError("the engine was stopped"))])

    def wake(self) -> None:
        """Let an idle engine check its sequences again. May be called in any thread."""
        self._commands.put(Command(self._engine.wake))

    async def wait_broken(self) -> None:
        """Return after an error has ended the engine."""
        await self._broken.wait()

    def stats(self) -> EngineStats:
        """Return the statistics of the last step. May be called in any thread."""
        return self._stats

    def on_cache_change(self, callback: Callable[[CacheChange], None]) -> None:
        """Call back on the loop for every change of the cache from now on, in order."""
        self._listeners.append(callback)

    async def submit(self, request: EngineRequest) -> RequestStream:
        """Queue a request. Cancelling this call aborts the request.

        Raises:
            InvalidRequestError: it can never be served.
            UnavailableError: the engine does not run.
        """
        stream = RequestStream(request.request_id, self._abort_soon)
        await self.call(
            lambda engine: engine.add(request),
            undo=lambda engine, _: engine.release(request.request_id),
            then=partial(self._register, stream),
        )
        return stream

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with `FinishReason.ABORT`. Unknown ids are ignored."""
        await self._call(partial(self._engine.abort, request_id))

    async def release(self, request_id: str) -> None:
        """Free the blocks of a `hold_blocks` request. Idempotent."""
        await self._call(partial(self._engine.release, request_id))

    async def complete_transfer(
        self,
        request_id: str,
        first_token: int | None = None,
        states_from: int | None = None,
        num_tokens: int | None = None,
        late_groups: Sequence[int] = (),
    ) -> None:
        """See `Engine.complete_transfer`."""
        complete = self._engine.complete_transfer
        await self._call(
            partial(complete, request_id, first_token, states_from, num_tokens, late_groups)
        )

    async def fail_transfer(self, request_id: str, first_token: int | None = None) -> None:
        """See `Engine.fail_transfer`."""
        await self._call(partial(self._engine.fail_transfer, request_id, first_token))

    async def pin_cached(
        self, block_hashes: Sequence[bytes], *, first_block: int = 0
    ) -> tuple[int, PrefixBlocks]:
        """See `Engine.pin_cached`. Cancelling this call gives the pin back."""
        return await self.call(
            lambda engine: engine.pin_cached(block_hashes, first_block=first_block),
            undo=lambda engine, pinned: engine.unpin(pinned[0]),
        )

    async def call(
        self,
        action: Callable[[Engine], T],
        *,
        undo: Callable[[Engine, T], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> T:
        """Run `action` in the engine's thread, between two steps, and return its result.

        If this call is cancelled and the action runs nevertheless, `undo` gets the result in that
        thread. `then` is called on the loop before any event that follows the action.
        """
        results: list[T] = []

        def act() -> T:
            results.append(action(self._engine))
            return results[0]

        def take_back() -> None:
            if undo is not None and results:
                undo(self._engine, results[0])

        try:
            return await self._call(act, then)
        except asyncio.CancelledError:
            self._send(Command(take_back))
            raise

    async def promote(self, block_hashes: Sequence[bytes], *, first_block: int = 0) -> None:
        """See `CachedBlocks.promote`; returns after the load or a cancellation."""
        over = asyncio.get_running_loop().create_future()
        # If the engine breaks before it has taken the order, the call below raises the reason.
        over.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._promotions.add(over)
        try:
            done = partial(self._post, [partial(resolve, over)])
            promote = partial(self._engine.cached.promote, block_hashes, done)
            await self._call(partial(promote, first_block=first_block))
            await over
        finally:
            self._promotions.discard(over)

    async def count_cached(self, block_hashes: Sequence[bytes], *, first_block: int = 0) -> int:
        """Return how many leading blocks are cached, in any tier."""
        count = partial(self._engine.cached.count, block_hashes, first_block=first_block)
        return await self._call(count)

    async def unpin(self, pin_id: int) -> None:
        """See `Engine.unpin`."""
        await self._call(partial(self._engine.unpin, pin_id))

    async def tier_snapshots(
        self, at_cut: Callable[[], None] | None = None
    ) -> dict[BlockTier, list[bytes]]:
        """Return every hash that prefix lookup finds, by tier.

        `at_cut` is called on the loop after the last change that the snapshot includes and before
        the first that it does not; when this returns, later changes may have been announced.
        """
        return await self._call(self._engine.cached.snapshots, then=at_cut)

    async def pause(self) -> None:
        """Begin no step until `resume`; returns when none runs. Commands are still taken."""
        await self._call(partial(self._set_paused, paused=True))

    async def resume(self) -> None:
        """Go on stepping."""
        await self._call(partial(self._set_paused, paused=False))

    async def reset_prefix_cache(self) -> int:
        """See `Engine.reset_prefix_cache`."""
        return await self._call(self._engine.reset_prefix_cache)

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused
        if paused:
            self._engine.settle()

    def _may_step(self) -> bool:
        return not self._paused and self._engine.has_work()

    def _register(self, stream: RequestStream) -> None:
        self._streams[stream.request_id] = stream

    def _abort_soon(self, stream: RequestStream) -> None:
        # Otherwise the request has ended, and another request may have its id.
        if self._streams.get(stream.request_id) is stream:
            self._send(Command(partial(self._engine.abort, stream.request_id)))

    def _send(self, command: Command) -> None:
        if self._stopped_by is None:
            self._commands.put(command)
        else:
            command.fail(self._stopped_by)

    async def _call(self, action: Callable[[], T], then: Callable[[], None] | None = None) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._send(Command(action, future, then))
        return await future

    def _run(self) -> None:
        """Run the engine's thread."""
        give_way()
        try:
            while self._turn():
                pass
        except Exception as error:  # the thread ends: every waiting caller must learn it
            log.exception("engine_thread_died")
            # Of a lost rank, other workers can continue the requests.
            is_lost = isinstance(error, RankError)
            reason = error if is_lost else InternalError(f"the engine died: {error!r}")
            self._post([self._broken.set, partial(self._end, reason)])
        finally:
            self._cores.lend()

    def _turn(self) -> bool:
        """Take all commands, waiting for one if there is nothing else to do; then step.

        Returns False after the command to stop.
        """
        go_on = self._take_commands()
        if go_on and self._may_step():
            self._cores.take()
            # A peer can start with admitted sequences while this step is still computed.
            news = self._news(self._engine.begin_step())
            self._post([self._stats_note(), *news] if news else [])
            news = self._news(self._engine.end_step())
            if self._engine.is_in_parts:
                self._post(news)
                self.progress.busy()
            else:
                self._post([self._stats_note(), *news])
                self.progress.stepped()
        if self._engine.broken is not None:
            raise self._engine.broken
        return go_on

    def _take_commands(self) -> bool:
        replies: list[Callable[[], None]] = []
        go_on = True
        while go_on:
            try:
                command = self._next_command(wait=not replies and not self._may_step())
            except queue.Empty:
                break
            if command is None:
                go_on = False
            else:
                reply = command.run()
                # A new request with the id of one that ended here may follow at once.
                replies += [*self._news(self._engine.take_events()), reply]
        if replies:
            self._post([self._stats_note(), *replies])
        return go_on

    def _next_command(self, *, wait: bool) -> Command | None:
        if not wait:
            return self._commands.get_nowait()
        self.progress.idle()
        self._cores.lend()
        command = self._commands.get()
        self.progress.busy()
        return command

    def _news(self, events: list[EngineEvent]) -> list[Callable[[], None]]:
        changes = self._engine.take_cache_changes()
        return [partial(self._announce, changes, events)] if changes or events else []

    def _post(self, messages: list[Callable[[], None]]) -> None:
        if messages and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call_all, messages)

    def _stats_note(self) -> Callable[[], None]:
        return partial(self._note_stats, self._engine.stats())

    def _note_stats(self, stats: EngineStats) -> None:
        self._stats = stats

    def _announce(self, changes: list[CacheChange], events: list[EngineEvent]) -> None:
        for change in changes:
            for listener in self._listeners:
                try:
                    listener(change)
                except Exception:  # requests must still get the events below
                    log.exception("cache_listener_failed")
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.push(event)
                if is_last(event):
                    del self._streams[event.request_id]

    def _end(self, reason: Exception) -> None:
        """Fail all streams and waiting calls with `reason`: no step follows."""
        self._stopped_by = self._stopped_by or reason
        for stream in self._streams.values():
            stream.push(Failed(request_id=stream.request_id, error=reason))
        self._streams.clear()
        for over in self._promotions:
            if not over.done():
                over.set_exception(reason)
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if command is not None:
                command.fail(reason)
