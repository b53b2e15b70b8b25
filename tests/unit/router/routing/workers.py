"""Endpoints, and an index of who holds what, for tests of routing."""

from __future__ import annotations

import random
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from services.router.routing.book import Book
from services.router.routing.chooser import WorkerChooser
from services.router.routing.places.mode import PlacementMode
from services.router.routing.policies.find import find_policy
from services.router.workers.endpoint import Endpoint
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.identity import Role, WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SIZE = 16
#: The namespace of workers.
SPACE = "ab"


def endpoint(name: str, role: Role = Role.PREFILL, **changes: Any) -> Endpoint:
    facts: dict[str, Any] = {
        "address": f"{name}:1",
        "model": "tiny",
        "namespace": SPACE,
        "block_size": BLOCK_SIZE,
        "num_blocks": 10_000,
        "max_model_len": 100_000,
    }
    record = WorkerRecord(worker=WorkerId(name, "1"), role=role, **(facts | changes))
    return Endpoint(record, WorkerLoad(), ready=True)


def hashes(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 32 for number in numbers]


class Clock:
    """Time that a test turns."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Holders:
    """A PrefixLookup with what the test puts in."""

    def __init__(self) -> None:
        self.blocks: dict[WorkerId, set[bytes]] = {}

    def hold(self, worker: Endpoint, wanted: Sequence[bytes]) -> None:
        self.blocks.setdefault(worker.record.worker, set()).update(wanted)

    def lookup(self, wanted: Sequence[bytes]) -> dict[WorkerId, int]:
        counts = {
            worker: len(list(takewhile(blocks.__contains__, wanted)))
            for worker, blocks in self.blocks.items()
        }
        return {worker: count for worker, count in counts.items() if count}


class Cluster:
    """Some workers, an index and a scheduler over them."""

    def __init__(
        self,
        *endpoints: Endpoint,
        policy: str = "cost",
        peer_fetch: bool = False,
        seed: int = 3,
        mode: PlacementMode = PlacementMode.DISAGGREGATED,
    ) -> None:
        self.clock = Clock()
        self.holders = Holders()
        self.book = Book(clock=self.clock)
        self.chooser = WorkerChooser(
            lambda role: [e for e in endpoints if e.serves(role)],
            policy=find_policy(policy, random.Random(seed)),
            prefixes=self.holders,
            book=self.book,
            peer_fetch=peer_fetch,
            mode=mode,
        )
