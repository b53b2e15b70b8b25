"""A subscriber as vLLM's consumers are written follows an engine's cache by its events.

Every payload is read twice: by the types that vLLM 0.32 reads them with, written down here, and as
plain MessagePack, so that fields and their names are compared literally.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from shared.address import join_address
from shared.engine.settings.model import ModelSettings
from shared.engine.thread.engine_thread import EngineThread
from shared.errors import ConfigError
from shared.kv.change_log import CacheChange
from shared.kv.content_log import ContentLog
from shared.kv.group_rules import GroupKind
from shared.kv.identity import KVIdentity, block_key
from shared.kv.layout import KVGroup, KVLayout
from shared.kv.tier import BlockTier
from shared.worker.config import WorkerConfig
from shared.worker.kv_events.cache_events import CacheEvents
from shared.worker.kv_events.published_cache import published_cache
from shared.worker.kv_events.publisher import END_OF_REPLAY, KvEventPublisher, open_publisher
from tests.fakes.engine.engines import make_engine, make_request
from tests.fakes.engine.offload import make_tiered_engine
from tests.fakes.servers.loopback import LOOPBACK6

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BLOCK_SIZE = 4
HASHES = KVIdentity(b"n").hash_blocks(range(24), BLOCK_SIZE)
LOW = [int.from_bytes(value[-8:], "big") for value in HASHES]
WINDOW = 6
FULL = KVGroup(num_layers=1, num_kv_heads=1, head_dim=4)
LAYOUT = KVLayout.of(
    (FULL, KVGroup(num_layers=1, num_kv_heads=1, head_dim=4, kind=GroupKind.WINDOW, window=WINDOW)),
    block_size=BLOCK_SIZE,
    dtype="float32",
)


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


CLEARED = {"type": "AllBlocksCleared"}


def read(payload: bytes) -> list[dict[str, Any]]:
    """The events of a payload that vLLM's types can read."""
    batch = msgspec.msgpack.decode(payload, type=Batch)
    assert batch.ts > 0
    plain = msgspec.msgpack.decode(payload)
    assert plain[2:] == [0]
    return [dict(each) for each in plain[1]]


def stored(hashes: list[int], **fields: Any) -> dict[str, Any]:
    """An event of the first group, but for the fields that are given."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": BLOCK_SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | fields


def removed(hashes: list[int], **fields: Any) -> dict[str, Any]:
    plain = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
    return plain | fields


class Bench:
    """A publisher, and a subscriber that has connected."""

    def __init__(self, contents: ContentLog) -> None:
        self.contents = contents
        self.publisher = KvEventPublisher(
            endpoint="tcp://127.0.0.1:*",
            replay_endpoint=f"tcp://{join_address(LOOPBACK6, '*')}",
            topic="kv",
        )
        self._events = CacheEvents(contents, layout=LAYOUT)
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

    async def receive(self) -> tuple[int, list[dict[str, Any]]]:
        async with asyncio.timeout(10):
            topic, sequence, payload = await self.subscriber.recv_multipart()
        assert topic == b"kv"
        return int.from_bytes(sequence, "big"), read(payload)

    async def replay(self, first: int) -> list[int]:
        """Sequences that the replay socket gives, as vLLM's example asks for them."""
        return [sequence for sequence, _ in await self.replayed(first)]

    async def replayed(self, first: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """The same with the events."""
        _, endpoint = self.publisher.endpoints
        assert endpoint is not None
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IPV6, 1)
        dealer.connect(endpoint)
        await dealer.send_multipart((b"", first.to_bytes(8, "big")))
        found: list[tuple[int, list[dict[str, Any]]]] = []
        async with asyncio.timeout(10):
            while True:
                _, topic, sequence, payload = await dealer.recv_multipart()
                if sequence == END_OF_REPLAY:
                    assert topic == payload == b""
                    return found
                assert topic == b"kv"
                found.append((int.from_bytes(sequence, "big"), read(payload)))

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
        stored(LOW[:3], token_ids=list(range(12))),
        stored([LOW[5]], parent_block_hash=LOW[4], token_ids=list(range(20, 24))),
    ]


async def test_events_of_other_groups_have_their_number_and_kind(bench: Bench) -> None:
    """Routers read prefixes from groups of full attention alone."""
    keys = [block_key(block_hash, 1) for block_hash in HASHES[:2]]
    for names in (HASHES[:2], keys):
        bench.contents.note(names, range(8), first=0, block_size=BLOCK_SIZE)
    bench.note(CacheChange(stored=(HASHES[0], keys[0], HASHES[1], keys[1])))
    bench.note(CacheChange(removed=(keys[1],)))
    first, events = await bench.receive()
    plain = stored(LOW[:2], token_ids=list(range(8)))
    of_windows = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": WINDOW,
    }
    assert events == [plain, plain | of_windows]
    assert await bench.receive() == (first + 1, [removed([LOW[1]], group_idx=1)])


async def test_removals_clears_and_lower_tiers(bench: Bench) -> None:
    bench.note(CacheChange(cleared=True, removed=(HASHES[1],)))
    bench.note(CacheChange(stored=(HASHES[2],), tier=BlockTier.HOST))
    bench.note(CacheChange(removed=(HASHES[2],), tier=BlockTier.DISK))
    first, events = await bench.receive()
    assert events == [CLEARED, removed([LOW[1]])]
    assert await bench.receive() == (first + 1, [stored([LOW[2]], medium="CPU")])
    assert await bench.receive() == (first + 2, [removed([LOW[2]], medium="STORAGE")])


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
    hashes = [block_hash for change in changes for block_hash in change.stored]
    found = [contents.take(block_hash) for block_hash in hashes]
    assert [c.token_ids for c in found if c] == [
        prompt[at : at + engine.layout.block_size]
        for at in range(0, len(prompt) - 1, engine.layout.block_size)
    ]
    assert [c.parent for c in found if c] == [None, *hashes[:-1]]
    engine.close()


async def one_life(bench: Bench, *, disk: Path, num_late: int) -> list[dict[str, Any]]:
    """Events while an engine with a disk tier computes a prompt, and goes on after its life."""
    first = len(await bench.replayed(0))
    engine = make_tiered_engine(host_blocks=16, disk=disk, disk_blocks=16)
    contents, thread = engine.record_contents(), EngineThread(engine)
    await thread.start()
    prompt = tuple(range(3, 3 + 3 * engine.layout.block_size + 1))
    async with published_cache(bench.publisher, thread, contents, layout=engine.layout):
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
    assert first[-1] == CLEARED
    second = await one_life(bench, disk=tmp_path, num_late=0)
    restored = [each["block_hashes"][0] for each in second if each.get("medium") == "STORAGE"]
    assert (second[0]["medium"], len(set(restored))) == ("STORAGE", 3 + 2 * 3)
    assert second[-1] == CLEARED
    replayed = [sequence for sequence, _ in await bench.replayed(0)]
    assert replayed == list(range(len(replayed)))


def held_after(events: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """The blocks that a subscriber knows of after these events, each with its medium."""
    held: set[tuple[int, str]] = set()
    for event in events:
        blocks = {(each, event["medium"]) for each in event.get("block_hashes", ())}
        match event["type"]:
            case "AllBlocksCleared":
                held.clear()
            case "BlockStored":
                held |= blocks
            case "BlockRemoved":
                held -= blocks
            case name:
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
            _, topic, sequence, payload = await dealer.recv_multipart()
    assert (topic, sequence, read(payload)) == (b"", bytes(8), [CLEARED])


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
