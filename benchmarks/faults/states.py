"""Brings one request, the victim, to a given moment of its life, and says where it really is.

Nothing here waits for a time to pass. What is not seen by the client is seen on the wire: a proxy
that meets the victim's id or ticket keeps the bytes until the fault is there.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from benchmarks.faults.clients.ask import VICTIM_TOKENS
from benchmarks.faults.system.cluster import ROUTERS
from benchmarks.faults.wire.connection import Channel, Connection, Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.faults.clients.ask import Ask
    from benchmarks.faults.clients.load import Load
    from benchmarks.faults.system.cluster import Cluster

REACH_TIMEOUT_S = 12.0
POLL_S = 0.01
STREAMING_TOKENS = 8
#: With fewer to come, the end would often be there before the fault is.
FINISHING_TOKENS = VICTIM_TOKENS - 4


class State(StrEnum):
    """Moments of a request, in order."""

    #: In the router's queue: the router is full, and no worker has heard of it.
    QUEUED = "queued"
    #: The router has chosen workers and sends it to the decode worker, which has not got it.
    TOKENISED = "tokenised"
    #: The prefill worker has the request, and has sent no block or token.
    PREFILLING = "prefilling"
    #: Its first piece has left the prefill worker, and has not arrived.
    TRANSFERRING = "transferring"
    FIRST_TOKEN = "first token out"
    STREAMING = "streaming"
    #: The client lacks a few tokens and the end, and a proxy holds them.
    FINISHING = "finishing"
    #: Too late for any of these.
    DONE = "done"

    @property
    def seen_on_wire(self) -> bool:
        """Whether the bytes of requests must be read to know it."""
        return self in (
            State.TOKENISED, State.PREFILLING, State.TRANSFERRING, State.FINISHING,
        )  # fmt: skip


class Victim:
    """A request on its way to `state`."""

    def __init__(self, cluster: Cluster, load: Load, state: State) -> None:
        self._hub = cluster.hub
        self._cluster = cluster
        self._load = load
        self._state = state
        self._hit = asyncio.Event()
        self._held: tuple[Connection, Way] | None = None
        #: By which the router has asked the decode worker.
        self._answers: Connection | None = None

    async def reach(self, ask: Ask, fillers: Callable[[], Ask]) -> bool:
        """Send it, and return at the moment that was asked for; False: it never came."""
        if self._state is State.QUEUED:
            for _ in range(self._cluster.scale.max_concurrent_requests + 4):
                self._load.ask(fillers())
        self.record, self.task = self._load.ask(ask, victim=True)
        self.record.on_token = self._on_token
        self._hub.watch(self.record.request_id)
        self._hub.on_request, self._hub.on_piece = self._on_request, self._on_piece
        if self._state is State.QUEUED:
            await self._until_queued()
        waiting = asyncio.create_task(self._hit.wait())
        done, _ = await asyncio.wait(
            {waiting, self.task}, timeout=REACH_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        return waiting in done

    def release(self) -> None:
        """The fault is there: what was held goes on, and nothing more is watched."""
        self._hub.on_request = self._hub.on_piece = None
        if self._held is not None:
            connection, way = self._held
            connection.release(way)
        self._held = None

    def worker(self, role: str) -> str | None:
        """Which process of a role has got it so far."""
        passed = self._hub.passed[self.record.request_id]
        return next((name for name in sorted(passed) if name.startswith(role)), None)

    @property
    def state(self) -> State:
        """The request's state, as far as it can be observed from outside."""
        num_tokens = self.record.num_tokens
        if self.record.ended_s is not None:
            return State.DONE
        if num_tokens >= FINISHING_TOKENS:
            return State.FINISHING
        if num_tokens:
            return State.STREAMING if num_tokens > 1 else State.FIRST_TOKEN
        if self._hub.num_pieces_of_watched:
            return State.TRANSFERRING
        if self.worker("prefill") is not None:
            return State.PREFILLING
        return State.QUEUED if self.worker("decode") is None else State.TOKENISED

    async def _until_queued(self) -> None:
        deadline_s = time.monotonic() + REACH_TIMEOUT_S
        while time.monotonic() < deadline_s and not self.task.done():
            waiting = [
                await self._cluster.metric(name, "baton_num_requests_waiting") for name in ROUTERS
            ]
            # An encrypted request cannot be followed; it was sent behind all the others.
            is_ours = self._cluster.encrypted or (
                self.worker("router") and not self.worker("decode")
            )
            if sum(waiting) and is_ours:
                self._hit.set()
                return
            await asyncio.sleep(POLL_S)

    def _on_request(self, request_id: str, connection: Connection) -> None:
        if request_id != self.record.request_id or connection.channel is not Channel.GRPC:
            return
        to_decode = connection.target.startswith("decode")
        if to_decode:
            self._answers = connection
        if self._state is State.TOKENISED and to_decode:
            self._hold(connection, Way.OUT)
        elif self._state is State.PREFILLING and not to_decode:
            self._hit.set()

    def _on_piece(self, connection: Connection) -> None:
        if self._state is State.TRANSFERRING:
            self._hold(connection, Way.OUT)

    def _hold(self, connection: Connection, way: Way) -> None:
        if self._held is None:
            self._held = connection, way
            connection.hold(way)
            self._hit.set()

    def _on_token(self, num_tokens: int) -> None:
        needed = {State.FIRST_TOKEN: 1, State.STREAMING: STREAMING_TOKENS}.get(self._state)
        if needed is not None and num_tokens >= needed:
            self._hit.set()
        finishing = self._state is State.FINISHING and num_tokens >= FINISHING_TOKENS
        if finishing and self._answers is not None and not self._hit.is_set():
            self._hold(self._answers, Way.BACK)
