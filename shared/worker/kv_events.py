"""Publishes a worker's cache changes in vLLM's format, so that other routers can use them.

Frames of the PUB socket are [topic, sequence as u64 big-endian, msgpack of an EventBatch]; the
sequence starts at 0 with the process. The replay socket (ROUTER) takes 8 bytes, a first sequence,
and answers with [sequence, batch] for each batch that it still has, then [-1, empty]. Events are
arrays that begin with their name, as in vLLM 0.9 to 0.14.

A block's hash is the low 64 bits of ours, which is not vLLM's hash of the same tokens: consumers
that hash themselves use the tokens, and vLLM's own consumers treat hashes as opaque. Blocks of
lower tiers come without tokens and parent, as vLLM's do. LoRA names are not sent: there are none.
Events of layers beyond the first group have its number (`group_idx`).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec
import structlog
import zmq
import zmq.asyncio

from shared.errors import ConfigError
from shared.kv.identity import HASH_BYTES, group_of
from shared.kv.tier import BlockTier
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from shared.kv.change_log import CacheChange
    from shared.kv.content_log import ContentLog
    from shared.worker.parts import WorkerParts

log = structlog.get_logger(__name__)

#: Batches that subscribers can request again.
MAX_REPLAY_BATCHES = 10_000
#: Maximum of batches that wait for a slow subscriber; it misses further ones.
HIGH_WATER_MARK = 100_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_HASH_MASK = 2**64 - 1
_MEDIUMS = {BlockTier.DEVICE: "GPU", BlockTier.HOST: "CPU", BlockTier.DISK: "STORAGE"}


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks of one sequence became visible, in order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class GroupBlockStored(BlockStored, tag="BlockStored"):
    """The same for a group of layers after the first, in the longer form of later versions."""

    lora_name: str | None
    extra_keys: list[str] | None
    group_idx: int


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks were removed."""

    block_hashes: list[int]
    medium: str | None


class GroupBlockRemoved(BlockRemoved, tag="BlockRemoved"):
    """Blocks of a group of layers after the first were removed."""

    group_idx: int


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """The cache was cleared."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """The events of one time."""

    ts: float
    events: list[Event]


class KvEventPublisher:
    """Binds its sockets when it is made.

    Call `note` on the event loop, and `answer` until cancelled.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str,
        block_size: int,
        contents: ContentLog,
    ) -> None:
        self._topic = topic.encode()
        self._block_size = block_size
        self._contents = contents
        self._sequence = 0
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_REPLAY_BATCHES)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        # A PUB socket never waits, so it needs no event loop.
        self._publisher: zmq.Socket[bytes] = zmq.Socket(self._context, zmq.PUB)
        self._publisher.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._replay: zmq.asyncio.Socket | None = None
        try:
            self._publisher.bind(endpoint)
            if replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"cannot publish KV events at {endpoint}: {error}") from error

    @property
    def endpoints(self) -> tuple[str, str | None]:
        """The endpoints of both sockets, with their actual ports."""
        replay = None if self._replay is None else self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._publisher.getsockopt_string(zmq.LAST_ENDPOINT), replay

    def note(self, change: CacheChange) -> None:
        """Publish a change.

        Never waits; a subscriber that is too slow misses it and can request it.
        """
        batch = EventBatch(ts=time.time(), events=list(self._events(change)))
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
                    await self._replay.send_multipart((client, b"", sequence, payload))
            await self._replay.send_multipart((client, b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close the sockets; unsent events are lost."""
        self._publisher.close(linger=0)
        if self._replay is not None:
            self._replay.close(linger=0)
        self._context.term()

    def _events(
        self, change: CacheChange
    ) -> Iterator[BlockStored | BlockRemoved | AllBlocksCleared]:
        medium = _MEDIUMS[change.tier]
        if change.cleared and change.tier is BlockTier.DEVICE:
            yield AllBlocksCleared()
        for key in change.removed:
            self._contents.take(key)
        for group in sorted({group_of(key) for key in (*change.removed, *change.stored)}):
            part = change.of_group(group)
            if part.removed:
                gone = BlockRemoved([_short(key) for key in part.removed], medium)
                yield _of_removed(gone, group) if group else gone
            for run in self._runs(part):
                yield _of_stored(run, group) if group else run

    def _runs(self, change: CacheChange) -> Iterator[BlockStored]:
        """Yield one event per run of consecutive blocks."""
        run: BlockStored | None = None
        last: bytes | None = None
        for block_hash in change.stored:
            is_device = change.tier is BlockTier.DEVICE
            content = self._contents.take(block_hash) if is_device else None
            parent, tokens = (None, ()) if content is None else content
            if run is None or parent is None or parent != last:
                if run is not None:
                    yield run
                run = BlockStored(
                    block_hashes=[],
                    parent_block_hash=None if parent is None else _short(parent),
                    token_ids=[],
                    block_size=self._block_size,
                    lora_id=None,
                    medium=_MEDIUMS[change.tier],
                )
            run.block_hashes.append(_short(block_hash))
            run.token_ids.extend(tokens)
            last = block_hash
        if run is not None:
            yield run


async def publish_kv_events(parts: WorkerParts, stack: AsyncExitStack) -> None:
    """Publish until the stack closes, if the settings ask for it.

    Raises:
        ConfigError: an endpoint cannot be bound.
    """
    config = parts.config
    if config.kv_events_endpoint is None or parts.contents is None:
        return
    publisher = KvEventPublisher(
        endpoint=config.kv_events_endpoint,
        replay_endpoint=config.kv_events_replay_endpoint,
        topic=config.kv_events_topic,
        block_size=parts.layout.block_size,
        contents=parts.contents,
    )
    stack.callback(publisher.close)
    parts.engine.on_cache_change(publisher.note)
    await stack.enter_async_context(running(publisher.answer()))
    log.info("kv_events", endpoints=publisher.endpoints)


def _of_removed(event: BlockRemoved, group: int) -> GroupBlockRemoved:
    return GroupBlockRemoved(**msgspec.structs.asdict(event), group_idx=group)


def _of_stored(event: BlockStored, group: int) -> GroupBlockStored:
    fields = msgspec.structs.asdict(event)
    return GroupBlockStored(**fields, lora_name=None, extra_keys=None, group_idx=group)


def _short(key: bytes) -> int:
    return int.from_bytes(key[:HASH_BYTES], "big") & _HASH_MASK
