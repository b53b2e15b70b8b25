"""The published blocks of one life of a worker, from its first to none."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shared.kv.change_log import CacheChange
from shared.worker.kv_events.cache_events import CacheEvents
from shared.worker.kv_events.events import AllBlocksCleared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shared.engine.thread.engine_thread import EngineThread
    from shared.kv.content_log import ContentLog
    from shared.kv.layout import KVLayout
    from shared.worker.kv_events.publisher import KvEventPublisher


@asynccontextmanager
async def published_cache(
    publisher: KvEventPublisher,
    engine: EngineThread,
    contents: ContentLog,
    *,
    layout: KVLayout,
    adapter_name: Callable[[bytes], str | None] = lambda _: None,
) -> AsyncIterator[None]:
    """Publish the blocks that an engine has and their changes; at the end, that all are gone.

    What the engine does after that is not published: no subscriber keeps a block of a past life.
    """
    events = CacheEvents(contents, layout=layout, adapter_name=adapter_name)
    follower = _Follower(publisher, events)
    engine.on_cache_change(follower.note)
    held = await engine.tier_snapshots(at_cut=follower.waiting.clear)
    follower.begin([CacheChange(stored=tuple(keys), tier=tier) for tier, keys in held.items()])
    try:
        yield
    finally:
        follower.is_over = True
        publisher.publish([AllBlocksCleared()])


class _Follower:
    def __init__(self, publisher: KvEventPublisher, events: CacheEvents) -> None:
        self._publisher = publisher
        self._events = events
        #: Changes that come before `begin`.
        self.waiting: list[CacheChange] = []
        self._has_begun = False
        self.is_over = False

    def note(self, change: CacheChange) -> None:
        if self._has_begun:
            self._publish(change)
        else:
            self.waiting.append(change)

    def begin(self, first: list[CacheChange]) -> None:
        """Publish these changes, then those that wait, then all others as they come."""
        for change in first + self.waiting:
            self._publish(change)
        self._has_begun = True

    def _publish(self, change: CacheChange) -> None:
        events = [] if self.is_over else list(self._events.of(change))
        if events:
            self._publisher.publish(events)
