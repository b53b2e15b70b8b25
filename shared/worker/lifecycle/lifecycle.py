"""The successive lives of one worker process, and the orders that end them.

A life is an incarnation: one set of weights, one engine, one id in the directory. Whatever changes
the weights or frees the memory ends a life and begins another one, so nothing that belongs to other
weights outlives them: blocks, tickets, handshakes, directory entries.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from shared.engine.speculation.own_head import check_own_head
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.errors import InvalidRequestError, ModelLoadError, UnavailableError
from shared.gguf.folder import made_of
from shared.worker.lifecycle.lease import PauseLease
from shared.worker.lifecycle.pause import Pause
from shared.worker.lifecycle.stage import PauseMode, SleepLevel, Stage
from shared.worker.lifecycle.weights import first_source, load_weights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.engine.ranks.leader import RankLeader
    from shared.engine.step.followers.followers import Followers
    from shared.engine.thread.engine_thread import EngineThread
    from shared.identity import WorkerId
    from shared.worker.config import WorkerConfig
    from shared.worker.health.gate import RequestGate
    from shared.worker.lifecycle.weights import Weights, WeightSource

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Life:
    """The present life, as orders see it."""

    worker: WorkerId
    #: None while the worker sleeps.
    engine: EngineThread | None = None
    gate: RequestGate | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    update: str
    weights: Weights
    #: Drops it when it is not committed in time.
    expiry: asyncio.TimerHandle


class Lifecycle:
    """Takes orders from RPCs; `process` lives the lives. Use it on the service's loop."""

    def __init__(self, config: WorkerConfig, leader: RankLeader | None = None) -> None:
        """`leader`: of the worker's other ranks."""
        self._config = config
        self._leader = leader
        #: Of the present weights, or of those that a sleeping worker had.
        self.source: WeightSource = first_source(config)
        self.stage = Stage.SERVING
        self.paused = False
        self._lease = PauseLease(self._go_on_soon)
        #: Ends a pause whose lease has lapsed.
        self._going_on: asyncio.Task[None] | None = None
        #: None only in stage ASLEEP.
        self.weights: Weights | None = None
        #: Fingerprint with which weights must come back; None: any.
        self._fingerprint: str | None = None
        self._prepared: _Prepared | None = None
        self._life: Life | None = None
        self._orders = asyncio.Lock()
        #: Set when the present life is to end for another one.
        self.turning = asyncio.Event()
        self._arrived: asyncio.Future[Life] | None = None

    async def load_first(self) -> None:
        """Load the weights of the first life.

        Raises:
            ConfigError, ModelLoadError: the worker cannot start as configured.
        """
        self.weights = await self._load(self.source)

    # What the process tells.

    def arrived(self, life: Life) -> None:
        """Record that a life has begun."""
        self._life = life
        # No order could reach the worker between its lives.
        self._lease.renew()
        if life.gate is not None and self.paused:
            life.gate.hold()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(life)

    def turned(self) -> None:
        """Record that a life has ended for another one."""
        self._life = None
        self.turning.clear()

    @property
    def followers(self) -> Followers:
        """The worker's other ranks."""
        return self._leader or NO_FOLLOWERS

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the weights that are loaded."""
        return () if self.weights is None else (self.weights.loaded.fingerprint,)

    def replaces(self, fingerprint: str) -> bool:
        """Return whether the present weights are others than these. A sleeper may have none."""
        return self.weights is not None and self.weights.loaded.fingerprint != fingerprint

    # Orders.

    @property
    def life(self) -> Life | None:
        """The present life; None between two."""
        return self._life

    @property
    def is_leased(self) -> bool:
        """Whether the present pause ends by itself."""
        return self._lease.runs

    @property
    def prepared(self) -> str:
        """Name of the prepared update; empty: none."""
        return "" if self._prepared is None else self._prepared.update

    async def pause(self, mode: PauseMode, timeout_s: float, lease_s: float = 0.0) -> None:
        """Hold requests; see `Pause.begin`.

        With `lease_s`, unless the worker is paused until it is resumed: it goes on by itself when
        nothing has come for this time.
        """
        async with self._order():
            lasts = self.paused and not self._lease.runs
            await self._pause(mode, timeout_s)
            self._lease.begin(0.0 if lasts else lease_s)

    def keep_paused(self) -> None:
        """Begin the pause's lease anew, if it has one."""
        self._lease.renew()

    async def resume(self) -> None:
        """Let requests go on."""
        async with self._order() as life:
            await self._go_on(life)

    async def sleep(self, level: SleepLevel) -> None:
        """End all requests, and free weights and KV. Safe to repeat.

        A sleeper may be told to wake up with any weights, and then no longer with the same alone.
        """
        async with self._order():
            if self.stage is Stage.ASLEEP:
                if level is SleepLevel.ANY:
                    self._fingerprint = None
                return
            assert self.weights is not None  # it is awake, or half
            await self._pause(PauseMode.ABORT, 0.0)
            self._lease.end()
            is_same = level is SleepLevel.SAME
            self._fingerprint = self.weights.loaded.fingerprint if is_same else None
            self._drop()
            self.weights = None
            await self._turn(Stage.ASLEEP)

    async def wake_up(self, *, kv_cache: bool) -> None:
        """Load the weights, and serve if `kv_cache`. Safe to repeat.

        Raises:
            ConfigError, ModelLoadError: the weights cannot be loaded; the worker sleeps on.
        """
        async with self._order():
            if self.stage is Stage.SERVING:
                return
            if self.weights is None:
                self.weights = await self._load_same()
            if kv_cache:
                self.paused = False
                self._lease.end()
            await self._turn(Stage.SERVING if kv_cache else Stage.LOADED)

    async def prepare(self, update: str, source: WeightSource, hold_s: float) -> str:
        """Load weights beside the present ones; return the fingerprint.

        Raises:
            InvalidRequestError: they are of another model, or older than the present ones.
            ModelLoadError: they cannot be loaded, or lack the head that is to guess for them.
        """
        async with self._order():
            self._drop()
            if source.generation <= self.source.generation:
                raise InvalidRequestError(
                    f"generation {source.generation} must be over {self.source.generation}, that "
                    "of the present weights",
                    param="generation",
                )
            weights = await self._load(source)
            if self.weights is not None:
                weights.check_replaces(self.weights.loaded)
            loaded = weights.loaded
            check_own_head(self._config.engine.speculation, loaded.made_from, loaded.spec)
            loop = asyncio.get_running_loop()
            expiry = loop.call_later(hold_s, self.drop, update)
            self._prepared = _Prepared(update, weights, expiry)
            log.info("weights_prepared", update=update, version=source.version)
            return loaded.fingerprint

    async def commit(self, update: str) -> WorkerId:
        """Replace the present weights by the prepared ones; return the id of the life with them.

        Raises:
            UnavailableError: no update of this name is prepared.
        """
        async with self._order():
            prepared = self._prepared
            if prepared is None or prepared.update != update:
                raise UnavailableError(f"update {update!r} is not prepared here")
            self._drop()
            self.weights, self.source = prepared.weights, prepared.weights.source
            del prepared
            stage = Stage.SERVING if self.stage is Stage.SERVING else Stage.LOADED
            return (await self._turn(stage)).worker

    def drop(self, update: str) -> None:
        """Drop a prepared update. Unknown names are ignored."""
        if self._prepared is not None and self._prepared.update == update:
            log.info("weights_dropped", update=update)
            self._drop()

    def _drop(self) -> None:
        if self._prepared is not None:
            self._prepared.expiry.cancel()
            self._prepared = None

    @asynccontextmanager
    async def _order(self) -> AsyncIterator[Life]:
        """Hold the worker for one order: orders do not overlap."""
        async with self._orders:
            if self._life is None or self.turning.is_set():
                raise UnavailableError(f"{self._config.name} is between two stages")
            yield self._life

    async def _pause(self, mode: PauseMode, timeout_s: float) -> None:
        life = self._life
        if life is not None and life.engine is not None:
            await self._pause_of(life).begin(mode, timeout_s)
        self.paused = True

    async def _go_on(self, life: Life) -> None:
        self.paused = False
        self._lease.end()
        if life.engine is not None:
            await self._pause_of(life).end()

    def _go_on_soon(self) -> None:
        self._going_on = asyncio.create_task(self._end_lapsed())

    async def _end_lapsed(self) -> None:
        async with self._orders:
            # An order that came meanwhile may have renewed or ended it.
            if not self._lease.has_lapsed:
                return
            if self._life is None or self.turning.is_set():
                self._lease.renew()
                return
            log.warning("pause_lapsed", reason="what ordered it has not renewed it")
            await self._go_on(self._life)

    def _pause_of(self, life: Life) -> Pause:
        assert life.engine is not None  # the caller has checked both
        assert life.gate is not None
        return Pause(life.engine, life.gate, self._config.name)

    async def _turn(self, stage: Stage) -> Life:
        """End the present life, and return the next one, which begins in `stage`.

        The change is finished even if the order is cancelled.
        """
        self.stage = stage
        self._arrived = asyncio.get_running_loop().create_future()
        self.turning.set()
        return await asyncio.shield(self._arrived)

    async def _load_same(self) -> Weights:
        weights = await self._load(self.source)
        if self._fingerprint not in (None, weights.loaded.fingerprint):
            place = made_of(self.source.folder) or self.source.folder
            raise ModelLoadError(
                f"{place} has other weights than those that fell asleep: sleep with level 2 to "
                "wake up with what is there, or give the weights by update_weights"
            )
        return weights

    async def _load(self, source: WeightSource) -> Weights:
        engine = None if self._life is None else self._life.engine
        if self._leader is None or engine is None:
            return await asyncio.to_thread(self._load_now, source)
        # Ranks compute no step while they load.
        return await engine.call(lambda _: self._load_now(source))

    def _load_now(self, source: WeightSource) -> Weights:
        weights = load_weights(self._config, source, self._leader)
        # What was prepared before, and dropped, is of no use to other ranks either.
        self.followers.keep((*self.fingerprints, weights.loaded.fingerprint))
        return weights
