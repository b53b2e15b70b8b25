"""What every directory must do. Subclasses provide `cluster`."""

from __future__ import annotations

import hashlib
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from shared.directory.base import (
    BlockUpdate,
    RegistryChange,
    RegistryEvent,
    WorkerLoad,
    WorkerRecord,
)
from shared.directory.probe import probe_digest
from shared.errors import (
    IncompatiblePeerError,
    InvalidRequestError,
    SequenceGapError,
    UnknownIncarnationError,
)
from shared.identity import Role, WorkerId
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.directory.base import BlockDirectory, WorkerRegistry

LEASE_S = 10.0
DEVICE, HOST, DISK = BlockTier


@dataclass(frozen=True, slots=True)
class Cluster:
    """A directory under test. `advance` lets time pass and leases end."""

    registry: WorkerRegistry
    blocks: BlockDirectory
    advance: Callable[[float], None]


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def record(worker: WorkerId, *, role: Role = Role.DECODE, num_blocks: int = 8) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        role=role,
        address=f"127.0.0.1:{5000 + len(worker.name)}",
        model="tiny",
        namespace="ab" * 32,
        block_size=16,
        num_blocks=num_blocks,
        max_model_len=128,
        labels={"zone": "a"},
        serves=frozenset({Role.PREFILL, Role.DECODE}),
    )


def hashes(*names: str) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(name.encode()).digest() for name in names)


A = WorkerId("a", "1")
B = WorkerId("b", "1")


class DirectorySuite:
    """Behaviour of WorkerRegistry and BlockDirectory together."""

    @pytest.fixture
    def cluster(self) -> Cluster:
        raise NotImplementedError

    async def test_a_registered_worker_is_listed_as_it_described_itself(
        self, cluster: Cluster
    ) -> None:
        await cluster.registry.register(record(A, role=Role.PREFILL), LEASE_S)
        (event,) = await cluster.registry.workers()
        assert event == RegistryEvent(
            change=RegistryChange.JOINED, record=record(A, role=Role.PREFILL), load=WorkerLoad()
        )

    async def test_a_heartbeat_carries_the_load(self, cluster: Cluster) -> None:
        load = WorkerLoad(
            num_running=3, num_waiting=2, num_free_blocks=1, draining=True, preference=Role.PREFILL
        )
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.registry.heartbeat(A, load)
        (event,) = await cluster.registry.workers()
        assert event.load == load

    async def test_heartbeats_keep_the_lease(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        for _ in range(5):
            cluster.advance(LEASE_S * 0.9)
            await cluster.registry.heartbeat(A, WorkerLoad())
        assert len(await cluster.registry.workers()) == 1

    async def test_without_heartbeats_a_worker_and_its_blocks_are_gone(
        self, cluster: Cluster
    ) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("x")))
        assert await cluster.blocks.lookup(hashes("x")) == {A: 1}
        cluster.advance(LEASE_S)
        assert await cluster.blocks.lookup(hashes("x")) == {}
        assert await cluster.registry.workers() == []
        with pytest.raises(UnknownIncarnationError):
            await cluster.registry.heartbeat(A, WorkerLoad())

    async def test_who_comes_back_starts_without_blocks(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("x")))
        cluster.advance(LEASE_S)
        await cluster.registry.register(record(A), LEASE_S)
        assert await cluster.blocks.lookup(hashes("x")) == {}
        with pytest.raises(SequenceGapError):
            await cluster.blocks.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("y")))
        await cluster.blocks.replace(A, 3, {DEVICE: hashes("x", "y")})
        assert await cluster.blocks.lookup(hashes("x", "y")) == {A: 2}

    async def test_registering_again_changes_nothing(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("x")))
        await cluster.registry.register(record(A), LEASE_S)
        assert await cluster.blocks.lookup(hashes("x")) == {A: 1}
        assert len(await cluster.registry.workers()) == 1

    async def test_a_new_incarnation_replaces_the_old_one(self, cluster: Cluster) -> None:
        reborn = WorkerId("a", "2")
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("x")))
        await cluster.registry.register(record(reborn), LEASE_S)
        assert [e.record.worker for e in await cluster.registry.workers()] == [reborn]
        assert await cluster.blocks.lookup(hashes("x")) == {}
        for late in (
            cluster.registry.heartbeat(A, WorkerLoad()),
            cluster.blocks.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("z"))),
            cluster.blocks.replace(A, 3, {DEVICE: hashes("z")}),
        ):
            with pytest.raises(UnknownIncarnationError):
                await late
        await cluster.registry.deregister(A)
        assert [e.record.worker for e in await cluster.registry.workers()] == [reborn]

    async def test_who_leaves_is_gone_at_once(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("x")))
        await cluster.registry.deregister(A)
        await cluster.registry.deregister(A)
        assert await cluster.registry.workers() == []
        assert await cluster.blocks.lookup(hashes("x")) == {}

    async def test_a_lease_must_be_a_time(self, cluster: Cluster) -> None:
        for lease_s in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidRequestError):
                await cluster.registry.register(record(A), lease_s)

    async def test_a_watcher_sees_who_is_there_and_every_change(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        async with aclosing(cluster.registry.watch()) as events:
            first = await anext(events)
            assert (first.change, first.record.worker) == (RegistryChange.JOINED, A)
            await cluster.registry.register(record(B), 3 * LEASE_S)
            second = await anext(events)
            assert (second.change, second.record.worker) == (RegistryChange.JOINED, B)
            load = WorkerLoad(num_running=4, preference=Role.PREFILL)
            await cluster.registry.heartbeat(B, load)
            third = await anext(events)
            assert (third.change, third.load) == (RegistryChange.UPDATED, load)
            cluster.advance(2 * LEASE_S)
            fourth = await anext(events)
            assert (fourth.change, fourth.record.worker) == (RegistryChange.LEFT, A)
            await cluster.registry.deregister(B)
            fifth = await anext(events)
            assert (fifth.change, fifth.record.worker) == (RegistryChange.LEFT, B)

    async def test_a_lookup_counts_leading_blocks_without_a_gap(self, cluster: Cluster) -> None:
        for worker in (A, B):
            await cluster.registry.register(record(worker), LEASE_S)
        update = BlockUpdate(worker=A, sequence=1, stored=hashes("1", "2", "4"))
        await cluster.blocks.publish(update)
        await cluster.blocks.publish(BlockUpdate(worker=B, sequence=1, stored=hashes("2", "1")))
        await cluster.blocks.publish(BlockUpdate(worker=B, sequence=2, stored=hashes("3", "4")))
        assert await cluster.blocks.lookup(hashes("1", "2", "3", "4", "5")) == {A: 2, B: 4}
        assert await cluster.blocks.lookup(hashes("1")) == {A: 1, B: 1}
        assert await cluster.blocks.lookup(hashes("3", "4")) == {B: 2}
        assert await cluster.blocks.lookup(hashes("5", "1")) == {}
        assert await cluster.blocks.lookup(()) == {}

    async def test_removed_and_cleared_blocks_are_gone(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        publish = cluster.blocks.publish
        await publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1", "2", "3")))
        await publish(BlockUpdate(worker=A, sequence=2, removed=hashes("2", "never")))
        assert await cluster.blocks.lookup(hashes("1", "2", "3")) == {A: 1}
        await publish(BlockUpdate(worker=A, sequence=3, cleared=True, stored=hashes("9")))
        assert await cluster.blocks.lookup(hashes("1")) == {}
        assert await cluster.blocks.lookup(hashes("9")) == {A: 1}

    async def test_an_update_is_applied_once(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        first = BlockUpdate(worker=A, sequence=1, stored=hashes("1"))
        await cluster.blocks.publish(first)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=2, removed=hashes("1")))
        await cluster.blocks.publish(first)
        assert await cluster.blocks.lookup(hashes("1")) == {}

    async def test_after_a_gap_nothing_is_applied_until_the_snapshot(
        self, cluster: Cluster
    ) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1")))
        with pytest.raises(SequenceGapError):
            await cluster.blocks.publish(BlockUpdate(worker=A, sequence=3, stored=hashes("3")))
        assert await cluster.blocks.lookup(hashes("3")) == {}
        await cluster.blocks.replace(A, 4, {DEVICE: hashes("3", "4")})
        assert await cluster.blocks.lookup(hashes("1")) == {}
        assert await cluster.blocks.lookup(hashes("3", "4")) == {A: 2}
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=5, stored=hashes("5")))
        assert await cluster.blocks.lookup(hashes("5")) == {A: 1}

    async def test_a_snapshot_that_arrives_late_is_ignored(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        for sequence, name in ((5, "5"), (4, "4")):
            await cluster.blocks.replace(A, sequence, {DEVICE: hashes(name)})
        assert await cluster.blocks.lookup(hashes("4")) == {}
        assert await cluster.blocks.lookup(hashes("5")) == {A: 1}

    async def test_only_registered_workers_publish(self, cluster: Cluster) -> None:
        with pytest.raises(UnknownIncarnationError):
            await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1")))
        with pytest.raises(UnknownIncarnationError):
            await cluster.blocks.replace(A, 1, {DEVICE: hashes("1")})

    async def test_nobody_holds_more_than_it_has_blocks(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A, num_blocks=2), LEASE_S)
        await cluster.blocks.publish(
            BlockUpdate(worker=A, sequence=1, stored=hashes("1", "2", "3"))
        )
        assert await cluster.blocks.lookup(hashes("1", "2", "3")) == {A: 2}
        await cluster.blocks.publish(
            BlockUpdate(worker=A, sequence=2, removed=hashes("1"), stored=hashes("4"))
        )
        assert await cluster.blocks.lookup(hashes("4")) == {A: 1}

    async def test_a_block_is_held_as_long_as_any_tier_holds_it(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        publish, lookup = cluster.blocks.publish, cluster.blocks.lookup
        await publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1", "2")))
        await publish(BlockUpdate(worker=A, sequence=2, stored=hashes("1"), tier=HOST))
        await publish(BlockUpdate(worker=A, sequence=3, removed=hashes("1", "2")))
        assert await lookup(hashes("1", "2")) == {A: 1}
        await publish(BlockUpdate(worker=A, sequence=4, stored=hashes("2"), tier=DISK))
        assert await lookup(hashes("1", "2")) == {A: 2}
        await publish(BlockUpdate(worker=A, sequence=5, cleared=True, tier=HOST))
        assert [await lookup(hashes(name)) for name in "12"] == [{}, {A: 1}]

    async def test_a_snapshot_says_what_each_tier_holds(self, cluster: Cluster) -> None:
        await cluster.registry.register(record(A), LEASE_S)
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("0")))
        await cluster.blocks.replace(
            A, 2, {DEVICE: hashes("1"), HOST: hashes("1", "2"), DISK: hashes("3")}
        )
        assert await cluster.blocks.lookup(hashes("0")) == {}
        assert await cluster.blocks.lookup(hashes("1", "2", "3", "4")) == {A: 3}
        await cluster.blocks.publish(BlockUpdate(worker=A, sequence=3, cleared=True))
        assert await cluster.blocks.lookup(hashes("1", "2", "3")) == {A: 3}
        await cluster.blocks.replace(A, 4, {})
        assert await cluster.blocks.lookup(hashes("1")) == {}

    async def test_only_the_pool_is_limited_by_the_number_of_its_blocks(
        self, cluster: Cluster
    ) -> None:
        await cluster.registry.register(record(A, num_blocks=1), LEASE_S)
        await cluster.blocks.replace(A, 1, {DEVICE: hashes("1", "2"), HOST: hashes("2", "3")})
        assert await cluster.blocks.lookup(hashes("1", "2", "3")) == {A: 3}

    async def test_a_worker_that_hashes_otherwise_is_refused_with_both_digests(
        self, cluster: Cluster
    ) -> None:
        ours, theirs = probe_digest(bytes.fromhex(record(A).namespace), 16), "00" * 32
        await cluster.registry.register(replace(record(A), probe=ours), LEASE_S)
        with pytest.raises(IncompatiblePeerError) as refusal:
            await self.join_and_beat(cluster, replace(record(B), probe=theirs))
        assert all(digest in str(refusal.value) for digest in (ours, theirs))
        assert [event.record.worker for event in await cluster.registry.workers()] == [A]

    async def join_and_beat(self, cluster: Cluster, worker: WorkerRecord) -> None:
        """Register, and go on until the directory has had the time to look at the record."""
        await cluster.registry.register(worker, LEASE_S)
