"""A subscriber as vLLM's consumers are written follows an engine's cache by its events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from shared.engine.engine_thread import EngineThread
from shared.engine.model_settings import ModelSettings
from shared.errors import ConfigError
from shared.kv.change_log import CacheChange
from shared.kv.content_log import ContentLog
from shared.kv.identity import KVIdentity, block_key
from shared.kv.tier import BlockTier
from shared.worker.config import WorkerConfig
from shared.worker.kv_events.cache_events import CacheEvents
from shared.worker.kv_events.published_cache import published_cache
from shared.worker.kv_events.publisher import END_OF_REPLAY, KvEventPublisher, open_publisher
from tests.fakes.engines import make_engine, make_request
from tests.fakes.offload import make_tiered_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BLOCK_SIZE = 4
HASHES = KVIdentity(b"n").hash_blocks(range(24), BLOCK_SIZE)
LOW = [int.from_bytes(value[-8:], "big") for value in HASHES]


class Bench:
    """A publisher, and a subscriber that has connected."""

    def __init__(self, contents: ContentLog) -> None:
        self.contents = contents
        self.publisher = KvEventPublisher(
            endpoint="tcp://127.0.0.1:*",
            replay_endpoint="tcp://127.0.0.1:*",
            topic="kv",
        )
        self._events = CacheEvents(contents, block_size=BLOCK_SIZE)
        self._context = zmq.asyncio.Context()
        self.subscriber = self._context.socket(zmq.SUB)
        self.subscriber.subscribe("kv")
        self._task = asyncio.create_task(self.publisher.answer())

    async def connect(self) -> None:
        """Until an event arrives: a subscription takes its time."""
        self.subscriber.connect(self.publisher.endpoints[0])
        while not await self.subscriber.poll(20):
            self.note(CacheChange(removed=(HASHES[0],)))
        while await self.subscriber.poll(50):
            await self.subscriber.recv_multipart()

    def note(self, change: CacheChange) -> None:
        self.publisher.publish(self._events.of(change))

    async def receive(self) -> tuple[int, list[Any]]:
        async with asyncio.timeout(10):
            topic, sequence, payload = await self.subscriber.recv_multipart()
        assert topic == b"kv"
        ts, events = msgspec.msgpack.decode(payload)
        assert ts > 0
        return int.from_bytes(sequence, "big"), events

    async def replay(self, first: int) -> list[int]:
        """Sequences that the replay socket gives, as vLLM's example asks for them."""
        return [sequence for sequence, _ in await self.replayed(first)]

    async def replayed(self, first: int) -> list[tuple[int, list[Any]]]:
        """The same with the events."""
        _, endpoint = self.publisher.endpoints
        assert endpoint is not None
        dealer = self._context.socket(zmq.DEALER)
        dealer.connect(endpoint)
        await dealer.send_multipart((b"", first.to_bytes(8, "big")))
        found: list[tuple[int, list[Any]]] = []
        async with asyncio.timeout(10):
            while True:
                _, sequence, payload = await dealer.recv_multipart()
                if sequence == END_OF_REPLAY:
                    assert payload == b""
                    return found
                _, events = msgspec.msgpack.decode(payload)
                found.append((int.from_bytes(sequence, "big"), events))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.publisher.close()
        self._context.destroy(linger=0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(ContentLog())
    await bench.connect()
    yield bench
    await bench.close()


async def test_what_is_stored_comes_with_tokens_and_parents_in_runs(bench: Bench) -> None:
    bench.contents.note(HASHES[:3], range(12), first=0, block_size=BLOCK_SIZE)
    bench.contents.note(HASHES, range(24), first=5, block_size=BLOCK_SIZE)
    bench.note(CacheChange(stored=(*HASHES[:3], HASHES[5])))
    _, events = await bench.receive()
    assert events == [
        ["BlockStored", LOW[:3], None, list(range(12)), BLOCK_SIZE, None, "GPU"],
        ["BlockStored", [LOW[5]], LOW[4], list(range(20, 24)), BLOCK_SIZE, None, "GPU"],
    ]


async def test_events_of_other_groups_have_their_number(bench: Bench) -> None:
    """In the longer form of later versions: LoRA name and extra keys come before it."""
    keys = [block_key(block_hash, 1) for block_hash in HASHES[:2]]
    for names in (HASHES[:2], keys):
        bench.contents.note(names, range(8), first=0, block_size=BLOCK_SIZE)
    bench.note(CacheChange(stored=(HASHES[0], keys[0], HASHES[1], keys[1])))
    bench.note(CacheChange(removed=(keys[1],)))
    first, events = await bench.receive()
    plain = ["BlockStored", LOW[:2], None, list(range(8)), BLOCK_SIZE, None, "GPU"]
    assert events == [plain, [*plain, None, None, 1]]
    assert await bench.receive() == (first + 1, [["BlockRemoved", [LOW[1]], "GPU", 1]])


async def test_removals_clears_and_lower_tiers(bench: Bench) -> None:
    bench.note(CacheChange(cleared=True, removed=(HASHES[1],)))
    bench.note(CacheChange(stored=(HASHES[2],), tier=BlockTier.HOST))
    bench.note(CacheChange(removed=(HASHES[2],), tier=BlockTier.DISK))
    first, events = await bench.receive()
    assert events == [["AllBlocksCleared"], ["BlockRemoved", [LOW[1]], "GPU"]]
    assert await bench.receive() == (
        first + 1, [["BlockStored", [LOW[2]], None, [], BLOCK_SIZE, None, "CPU"]]
    )  # fmt: skip
    assert await bench.receive() == (first + 2, [["BlockRemoved", [LOW[2]], "STORAGE"]])


async def test_what_was_missed_is_sent_again(bench: Bench) -> None:
    for block_hash in HASHES:
        bench.note(CacheChange(stored=(block_hash,)))
    first, _ = await bench.receive()
    assert await bench.replay(first + 2) == list(range(first + 2, first + len(HASHES)))
    assert await bench.replay(10**6) == []
    assert (await bench.replay(0))[0] == 0


async def test_an_engine_tells_what_its_blocks_contain() -> None:
    engine = make_engine()
    contents = engine.record_contents()
    thread = EngineThread(engine)
    changes: list[CacheChange] = []
    thread.on_cache_change(changes.append)
    await thread.start()
    prompt = tuple(range(3, 3 + 3 * engine.layout.block_size + 1))
    async for _ in await thread.submit(make_request("r", prompt, max_tokens=1)):
        pass
    await thread.stop()
    stored = [block_hash for change in changes for block_hash in change.stored]
    found = [contents.take(block_hash) for block_hash in stored]
    assert [c.token_ids for c in found if c] == [
        prompt[at : at + engine.layout.block_size]
        for at in range(0, len(prompt) - 1, engine.layout.block_size)
    ]
    assert [c.parent for c in found if c] == [None, *stored[:-1]]
    engine.close()


async def one_life(bench: Bench, *, disk: Path, num_late: int) -> list[list[Any]]:
    """Events while an engine with a disk tier computes a prompt, and goes on after its life."""
    first = len(await bench.replayed(0))
    engine = make_tiered_engine(host_blocks=16, disk=disk, disk_blocks=16)
    contents, thread = engine.record_contents(), EngineThread(engine)
    await thread.start()
    prompt = tuple(range(3, 3 + 3 * engine.layout.block_size + 1))
    async with published_cache(bench.publisher, thread, contents, block_size=BLOCK_SIZE):
        async for _ in await thread.submit(make_request("r", prompt, max_tokens=1)):
            pass
    for number in range(num_late):
        late = tuple(range(20 + 20 * number, 20 + 20 * number + len(prompt)))
        async for _ in await thread.submit(make_request(f"late {number}", late, max_tokens=1)):
            pass
    await thread.stop()
    engine.close()
    return [event for _, events in (await bench.replayed(0))[first:] for event in events]


async def test_no_block_of_a_life_is_left_at_its_end(bench: Bench, tmp_path: Path) -> None:
    """The next life goes on counting, and begins with what its disk still has."""
    first = await one_life(bench, disk=tmp_path, num_late=2)
    assert held_after(first[:-1]) != set()
    assert first[-1] == ["AllBlocksCleared"]
    second = await one_life(bench, disk=tmp_path, num_late=0)
    restored = [event[1][0] for event in second if event[-1] == "STORAGE"]
    assert (second[0][-1], len(set(restored))) == ("STORAGE", 3 + 2 * 3)
    assert second[-1] == ["AllBlocksCleared"]
    replayed = [sequence for sequence, _ in await bench.replayed(0)]
    assert replayed == list(range(len(replayed)))


def held_after(events: list[list[Any]]) -> set[tuple[int, str]]:
    """The blocks that a subscriber knows of after these events, each with its medium."""
    held: set[tuple[int, str]] = set()
    for name, *rest in events:
        match name, rest:
            case "AllBlocksCleared", _:
                held.clear()
            case "BlockStored", [hashes, _, _, _, _, medium, *_]:
                held.update((each, medium) for each in hashes)
            case "BlockRemoved", [hashes, medium, *_]:
                held.difference_update((each, medium) for each in hashes)
            case _:
                raise AssertionError(name)
    return held


async def test_a_process_begins_with_no_blocks() -> None:
    """Its subscribers may have known an earlier process at the endpoint."""
    config = WorkerConfig(
        model=ModelSettings(model=Path("m")),
        directory=("127.0.0.1:1",),
        kv_events_endpoint="tcp://127.0.0.1:*",
        kv_events_replay_endpoint="tcp://127.0.0.1:*",
    )
    async with open_publisher(config) as publisher:
        assert publisher is not None
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(str(publisher.endpoints[1]))
            await dealer.send_multipart((b"", bytes(8)))
            _, sequence, payload = await dealer.recv_multipart()
    assert (sequence, msgspec.msgpack.decode(payload)[1]) == (bytes(8), [["AllBlocksCleared"]])


def test_contents_that_nobody_takes_are_bounded() -> None:
    contents = ContentLog(max_blocks=2)
    contents.note(HASHES, range(24), first=0, block_size=BLOCK_SIZE)
    assert [contents.take(h) is None for h in HASHES] == [True] * 4 + [False] * 2
    assert contents.take(HASHES[-1]) is None


async def test_an_endpoint_that_is_taken_is_a_clear_error(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="KV events"):
        KvEventPublisher(
            endpoint=bench.publisher.endpoints[0],
            replay_endpoint=None,
            topic="",
        )
