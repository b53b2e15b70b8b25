"""The sockets on which a worker publishes its cache changes.

Frames of the PUB socket are [topic, sequence as u64 big-endian, msgpack of an EventBatch]. The
sequence starts at 0 with the process, and goes on when the worker begins another life, with other
weights or after sleep. The replay socket (ROUTER) takes 8 bytes, a first sequence, and answers with
[topic, sequence, batch] for each batch that it still has, then [empty, -1, empty]: vLLM's frames
since the topic was added to them; earlier ones had none.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import msgspec
import structlog
import zmq
import zmq.asyncio

from shared.address import needs_ipv6
from shared.errors import ConfigError
from shared.rpc.cancellation import running
from shared.worker.kv_events.events import AllBlocksCleared, EventBatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from shared.worker.config import WorkerConfig
    from shared.worker.kv_events.events import Event

log = structlog.get_logger(__name__)

#: Batches that subscribers can request again.
MAX_REPLAY_BATCHES = 10_000
#: Maximum of batches that wait for a slow subscriber; it misses further ones.
HIGH_WATER_MARK = 100_000
#: For the last events of a process, in milliseconds.
LINGER_MS = 200
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KvEventPublisher:
    """Binds its sockets when it is made.

    Call `publish` on the event loop, and `answer` until cancelled.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str,
    ) -> None:
        self._topic = topic.encode()
        self._sequence = 0
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_REPLAY_BATCHES)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        # A PUB socket never waits, so it needs no event loop.
        self._publisher: zmq.Socket[bytes] = zmq.Socket(self._context, zmq.PUB)
        self._publisher.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._replay: zmq.asyncio.Socket | None = None
        try:
            self._publisher.set(zmq.IPV6, needs_ipv6(endpoint))
            self._publisher.bind(endpoint)
            if replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.set(zmq.IPV6, needs_ipv6(replay_endpoint))
                self._replay.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"cannot publish KV events at {endpoint}: {error}") from error

    @property
    def endpoints(self) -> tuple[str, str | None]:
        """The endpoints of both sockets, with their actual ports."""
        replay = None if self._replay is None else self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._publisher.getsockopt_string(zmq.LAST_ENDPOINT), replay

    def publish(self, events: Iterable[Event]) -> None:
        """Publish events of one time.

        Never waits; a subscriber that is too slow misses them and can request them.
        """
        batch = EventBatch(ts=time.time(), events=list(events))
        payload = self._encoder.encode(batch)
        sequence = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._sent.append((sequence, payload))
        self._publisher.send_multipart((self._topic, sequence, payload), zmq.NOBLOCK)

    async def answer(self) -> None:
        """Answer requests for missed events. Returns at once without a replay endpoint."""
        while self._replay is not None:
            client, *_, first = await self._replay.recv_multipart()
            if len(first) != len(END_OF_REPLAY):
                log.warning("bad_replay_request", num_bytes=len(first))
                continue
            for sequence, payload in list(self._sent):
                if sequence >= first:
                    await self._replay.send_multipart((client, b"", self._topic, sequence, payload))
            await self._replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close the sockets; events that take longer to send are lost."""
        self._publisher.close(linger=LINGER_MS)
        if self._replay is not None:
            self._replay.close(linger=0)
        self._context.term()


@asynccontextmanager
async def open_publisher(config: WorkerConfig) -> AsyncIterator[KvEventPublisher | None]:
    """Publish and answer until the context closes, if the settings ask for it; else yield None.

    Raises:
        ConfigError: an endpoint cannot be bound.
    """
    if config.kv_events_endpoint is None:
        yield None
        return
    publisher = KvEventPublisher(
        endpoint=config.kv_events_endpoint,
        replay_endpoint=config.kv_events_replay_endpoint,
        topic=config.kv_events_topic,
    )
    with closing(publisher):
        log.info("kv_events", endpoints=publisher.endpoints)
        # To subscribers that knew an earlier process at this endpoint.
        publisher.publish([AllBlocksCleared()])
        async with running(publisher.answer()):
            yield publisher
