from __future__ import annotations

from dataclasses import replace

import pytest

from services.router.routing.book import Book
from services.router.routing.room import WorkerRoom
from services.router.workers.endpoint import Endpoint
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.identity import Role, WorkerId


class Cluster:
    def __init__(
        self, *roles: Role, num_blocks: int = 100, serves: frozenset[Role] = frozenset()
    ) -> None:
        self.now_s = 0.0
        self.endpoints = [
            Endpoint(
                record=WorkerRecord(
                    worker=WorkerId.born(f"{role.value}-{i}"),
                    role=role,
                    address="",
                    model="m",
                    namespace="ab" * 32,
                    block_size=16,
                    num_blocks=num_blocks,
                    max_model_len=512,
                    serves=serves,
                ),
                load=WorkerLoad(),
                ready=True,
            )
            for i, role in enumerate(roles)
        ]
        book = Book(clock=lambda: self.now_s)
        self.room = WorkerRoom(
            lambda role: [e for e in self.endpoints if e.serves(role)],
            book,
            max_worker_queue_ms=100,
        )

    def has_room(self, num_tokens: int) -> bool:
        left = self.room.left()
        has = self.room(num_tokens)
        assert has == (left.num_prompts > 0 and num_tokens <= left.num_tokens)
        return has

    def send(self, place: int, key: int, expected_ms: float = 60.0) -> None:
        self.endpoints[place].work.add_prompt(key, 10, expected_ms, self.now_s)


def test_there_is_room_while_some_worker_has_little_to_compute() -> None:
    cluster = Cluster(Role.PREFILL, Role.PREFILL, Role.DECODE)
    for key in (1, 2):
        cluster.send(0, key)
    assert cluster.has_room(10)
    cluster.send(1, 3, 500)
    # Long as it takes: with a second prompt there it will not run dry.
    assert cluster.has_room(10)
    cluster.send(1, 4)
    assert not cluster.has_room(10)
    # Time passes.
    cluster.now_s = 0.055
    assert cluster.has_room(10)
    cluster.endpoints[0].ready = False
    assert not cluster.has_room(10)
    cluster.endpoints[1].work.end_prompt(3, cluster.now_s)
    assert cluster.has_room(10)


def test_without_prefill_workers_decode_workers_compute_the_prompts() -> None:
    cluster = Cluster(Role.DECODE)
    cluster.send(0, 1)
    cluster.send(0, 2)
    assert not cluster.has_room(10)


@pytest.mark.parametrize(("num_tokens", "expected"), [(440, True), (441, False)])
def test_a_pool_that_is_nearly_full_has_no_room(num_tokens: int, expected: bool) -> None:
    cluster = Cluster(Role.PREFILL, Role.DECODE)
    cluster.endpoints[1].work.num_held_tokens = 1000
    assert cluster.has_room(num_tokens) is expected
    # One that is longer than all of the pool is the worker's to refuse.
    cluster.endpoints[1].work.num_held_tokens = 0
    assert cluster.has_room(5000)


def test_host_memory_is_room_for_prompts_that_others_compute() -> None:
    cluster = Cluster(Role.PREFILL, Role.DECODE)
    record = cluster.endpoints[1].record
    cluster.endpoints[1].record = replace(record, num_landing_blocks=10)
    cluster.endpoints[1].work.num_held_tokens = 1000
    assert cluster.has_room(440 + 160)
    assert not cluster.has_room(440 + 161)
    # None can be handed over.
    cluster.endpoints[0].ready = False
    assert not cluster.has_room(441)


def test_without_workers_nobody_waits_for_what_routing_will_say() -> None:
    assert Cluster().has_room(10)
    assert Cluster(Role.PREFILL).has_room(10)


def test_prefill_workers_alone_have_room_for_what_they_write_themselves() -> None:
    cluster = Cluster(Role.PREFILL, Role.PREFILL, serves=frozenset({Role.PREFILL, Role.DECODE}))
    for endpoint in cluster.endpoints:
        endpoint.work.num_held_tokens = 1500
    assert not cluster.has_room(100)
    cluster.endpoints[1].work.num_held_tokens = 0
    assert cluster.has_room(100)
    for key in (1, 2):
        cluster.send(1, key)
    # The other one has time, and this one has space.
    assert cluster.has_room(100)
    for key in (3, 4):
        cluster.send(0, key)
    assert not cluster.has_room(100)
