"""A subscriber to a worker's KV events, as consumers of vLLM's are written."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
REPLAY_S = 10.0


class CacheFollower:
    """Knows a worker's blocks by its events alone. Close it."""

    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.subscribe("")
        self._live.connect(endpoint)
        self.endpoints = endpoint, replay_endpoint
        #: Number of events' batches that were applied.
        self.num_batches = 0
        #: Hashes and mediums of the blocks.
        self.held: set[tuple[int, str]] = set()
        self._fetch()

    def read(self, wait_ms: int = 100) -> set[tuple[int, str]]:
        """Apply what has come, and what was missed; return the blocks."""
        while self._live.poll(wait_ms):
            _, sequence, payload = self._live.recv_multipart()
            number = int.from_bytes(sequence, "big")
            if number > self.num_batches:
                self._fetch()
            elif number == self.num_batches:
                self._apply(payload)
        return self.held

    def count(self, medium: str) -> int:
        """The blocks of a medium: GPU, CPU, STORAGE."""
        return sum(own == medium for _, own in self.held)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _fetch(self) -> None:
        """Ask for the batches from the next one on."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.connect(self.endpoints[1])
            dealer.send_multipart((b"", self.num_batches.to_bytes(8, "big")))
            while True:
                assert dealer.poll(REPLAY_S * 1000)
                *_, sequence, payload = dealer.recv_multipart()
                if sequence == END_OF_REPLAY:
                    return
                assert int.from_bytes(sequence, "big") == self.num_batches
                self._apply(payload)

    def _apply(self, payload: bytes) -> None:
        self.num_batches += 1
        _, events, *_ = msgspec.msgpack.decode(payload)
        for event in events:
            self._apply_event(event)

    def _apply_event(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "AllBlocksCleared"}:
                self.held.clear()
            case {"type": "BlockStored", "block_hashes": hashes, "medium": medium}:
                self.held.update((each, medium) for each in hashes)
            case {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}:
                self.held.difference_update((each, medium) for each in hashes)
            case _:
                raise AssertionError(event)
