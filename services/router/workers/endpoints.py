"""The live workers, from the registry. A worker is used after it has answered the canary."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import structlog

from services.router.workers.adapter_use import AdapterUse, LoadTimes
from services.router.workers.endpoint import Endpoint, preferring
from services.router.workers.timing.profile import WorkerProfile
from shared.directory.base import RegistryChange
from shared.errors import BatonError, DrainingError, NoWorkerError, WorkerLostError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable

    from services.router.workers.canary import Check
    from services.router.workers.endpoint import OfferedVectors
    from services.router.workers.generations import Generations
    from services.router.workers.sessions import SessionPool
    from shared.directory.base import RegistryEvent, WorkerRecord, WorkerRegistry
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
REGISTRY_RETRY_S = 1.0
#: Interval of visits to workers without a reported failure, and how many they may miss.
VISIT_S = 5.0
MAX_MISSED_VISITS = 2
#: A live worker whose lease has ended registers again and answers the canary within this time.
RETURN_S = 3.0
#: Time without a measurement of a role's workers after which all workers' are taken for theirs.
ROLE_STALE_S = 120.0
ASLEEP = "the workers are asleep"


class EndpointPool:
    """Every live worker that serves one of `model_names`. `run` keeps it up to date."""

    def __init__(
        self,
        registry: WorkerRegistry,
        check: Check,
        sessions: SessionPool,
        *,
        model_names: Collection[str],
        generations: Generations,
        retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._registry = registry
        self._check = check
        self._sessions = sessions
        self._model_names = frozenset(model_names)
        self._generations = generations
        self._retry_s = retry_s
        self._endpoints: dict[WorkerId, Endpoint] = {}
        self._checks: dict[WorkerId, asyncio.Task[None]] = {}
        self._retired: list[Endpoint] = []
        #: Of all workers, and of those that started with a role.
        self._everyones = WorkerProfile()
        self._fleets: dict[Role, WorkerProfile] = {}
        self._load_times = LoadTimes()
        self._max_model_len: int | None = None
        self._last_vectors: OfferedVectors | None = None
        self._left_s: dict[Role, float] = {}
        #: Whether a worker has slept since one was ready last.
        self._has_sleepers = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the registry until cancelled.

        While it is unavailable, the last known workers count.
        """
        visiting = asyncio.create_task(self._visit_again_and_again())
        try:
            while True:
                try:
                    await self._follow()
                except (BatonError, OSError) as error:
                    log.warning("registry_lost", error=str(error))
                await asyncio.sleep(REGISTRY_RETRY_S)
        finally:
            tasks = [visiting, *self._checks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def of_role(self, role: Role) -> list[Endpoint]:
        """Live workers that prefer the role, usable or not. Each worker prefers one."""
        return [e for e in self._endpoints.values() if e.preference is role]

    def serving(self, role: Role) -> list[Endpoint]:
        """Live workers that have the role's service, usable or not."""
        return [e for e in self._endpoints.values() if e.serves(role)]

    def fleet(self, role: Role) -> WorkerProfile:
        """Return the profile of all workers that started with the role, which is their prior.

        Its own prior is the profile of all workers: one that has computed no prompt yet is expected
        to be as fast as those that have.
        """
        if role not in self._fleets:
            self._fleets[role] = WorkerProfile(self._everyones, stale_s=ROLE_STALE_S)
        return self._fleets[role]

    def everyone(self) -> Iterable[Endpoint]:
        """Live workers of all roles, usable or not."""
        return self._endpoints.values()

    def left_lately(self, role: Role) -> bool:
        """Return whether a worker that serves the role left less than `RETURN_S` ago.

        It may come back.
        """
        return time.monotonic() - self._left_s.get(role, -math.inf) < RETURN_S

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        return any(e.usable for e in self.serving(Role.DECODE)) or self.makes_only_vectors

    @property
    def makes_only_vectors(self) -> bool:
        """Whether the workers make vectors and no answers."""
        offered = self.vectors()
        return offered is not None and offered.is_only and not self.serving(Role.DECODE)

    def vectors(self) -> OfferedVectors | None:
        """Return the vectors that the usable workers make; None: none that is known of."""
        found = (e.software.vectors for e in self.serving(Role.PREFILL) if e.usable)
        return next((vectors for vectors in found if vectors is not None), None)

    def offered_vectors(self) -> OfferedVectors | None:
        """Return the vectors of the workers; of workers that are gone, what they made last.

        Vectors that were made beside answers are missed until a prefill worker says otherwise;
        those of an embedder no longer than its workers may come back, since answers are refused
        meanwhile.

        Raises:
            NoWorkerError: there is no worker that could say it.
        """
        offered = self.vectors()
        readers = self.of_role(Role.PREFILL)
        if offered is not None or any(endpoint.usable for endpoint in readers):
            self._last_vectors = offered
            return offered
        last = self._last_vectors
        if last is not None and not last.is_only:
            return last
        if readers or self.left_lately(Role.PREFILL):
            if last is None:
                raise NoWorkerError("no prefill worker is ready")
            return last
        if not any(endpoint.usable for endpoint in self._endpoints.values()):
            raise NoWorkerError("no worker is ready")
        return None

    @property
    def is_asleep(self) -> bool:
        """Whether no request can be served until workers that sleep have woken up."""
        return self._has_sleepers and not self.is_ready

    def not_ready_because(self) -> list[str]:
        """Return what is missing before a request can be served; empty if ready."""
        if self.is_ready:
            return []
        return [ASLEEP if self.is_asleep else "no decode worker is ready"]

    def notes(self) -> list[str]:
        """Return the parts that are missing though requests can be served."""
        if not self.is_ready or self.makes_only_vectors:
            return []
        if not any(endpoint.usable for endpoint in self.of_role(Role.PREFILL)):
            return ["no prefill worker is ready: decode workers compute prompts themselves"]
        if not any(endpoint.usable for endpoint in self.of_role(Role.DECODE)):
            return ["no decode worker is ready: prefill workers write the answers themselves"]
        return []

    async def wait_ready(self) -> None:
        """Return as soon as a request can be served."""
        await self.wait_until(lambda: self.is_ready)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Check `condition` after every change of a worker's state, until it is true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """Have `wait_until` check its conditions: something besides workers has changed."""
        self._changed.set()

    def updated_to(self) -> WorkerRecord | None:
        """Return a record with the weights that the cluster was updated to last, if it was."""
        return self._generations.updated_to

    def max_model_len(self) -> int:
        """Return the longest sequence that any decode worker takes.

        Without decode workers: that any other worker takes that decodes; the last known value if
        all have left.

        Raises:
            NoWorkerError: no decode worker has registered yet.
        """
        if self._max_model_len is None and self.makes_only_vectors:
            return max(e.record.max_model_len for e in self.of_role(Role.PREFILL))
        if self._max_model_len is None:
            raise NoWorkerError("no decode worker has registered yet")
        return self._max_model_len

    def report_failure(self, endpoint: Endpoint, error: BatonError) -> None:
        """Stop using a worker after a failed request, until it answers the canary.

        A worker that reports that it drains is not tested again.
        """
        if self._endpoints.get(endpoint.record.worker) is not endpoint:
            return
        self._changed.set()
        if isinstance(error, DrainingError):
            endpoint.refused = True
            return
        log.warning("worker_failed", worker=str(endpoint.record.worker), error=str(error))
        endpoint.ready = False
        self._start_check(endpoint)

    async def visit(self) -> None:
        """Check whether every ready worker answers.

        A worker that is disconnected from this router alone still sends heartbeats. Without this
        check, the loss of an idle worker would be found only when a request fails there.
        """
        ready = [endpoint for endpoint in self._endpoints.values() if endpoint.ready]
        await asyncio.gather(*(self._visit(endpoint) for endpoint in ready))

    async def _visit_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(VISIT_S)
            self._judge()
            await self.visit()

    async def _visit(self, endpoint: Endpoint) -> None:
        try:
            endpoint.software = await self._check.is_there(endpoint.record)
        except BatonError as error:
            endpoint.num_missed += 1
            if endpoint.num_missed >= MAX_MISSED_VISITS and endpoint.ready:
                self.report_failure(endpoint, error)
        else:
            endpoint.num_missed = 0

    async def _follow(self) -> None:
        alive = {event.record.worker for event in await self._registry.workers()}
        for worker in self._endpoints.keys() - alive:
            await self._remove(worker)
        # The contract promises an iterator with `aclose`, which its type cannot express.
        events = cast("AsyncGenerator[RegistryEvent]", self._registry.watch())
        async with aclosing(events):
            async for event in events:
                await self._apply(event)

    async def _apply(self, event: RegistryEvent) -> None:
        worker = event.record.worker
        if event.change is RegistryChange.LEFT:
            await self._remove(worker, in_order=event.in_order)
        elif (endpoint := self._endpoints.get(worker)) is not None:
            before = endpoint.preference
            endpoint.report(event.load)
            if endpoint.preference is not before:
                log.info("worker_prefers", worker=str(worker), role=endpoint.preference.value)
                self._judge()
            endpoint.refused = endpoint.refused and event.load.draining
            if event.load.unhealthy and endpoint.ready:
                self.report_failure(endpoint, WorkerLostError("it reports itself unhealthy"))
            if self._retired:
                await self._drop_channels()
        elif event.record.model not in self._model_names:
            return
        else:
            endpoint = self._endpoints[worker] = self._new(event)
            self._generations.joined(event.record)
            self._judge()
            if not event.record.sleeps:
                self._start_check(endpoint)
            else:
                self._has_sleepers = True
        self._changed.set()

    def _new(self, event: RegistryEvent) -> Endpoint:
        """Return the endpoint of a new worker, with the profile of its role as the prior."""
        fleet = self.fleet(event.record.role)
        return Endpoint(
            event.record,
            event.load,
            profile=WorkerProfile(fleet),
            adapters=AdapterUse(self._load_times),
        )

    def _judge(self) -> None:
        """Check again which workers' weights are those of their generations."""
        records = [endpoint.record for endpoint in self._endpoints.values()]
        for endpoint in self._endpoints.values():
            refusal = self._generations.refusal(endpoint.record, records)
            worker = str(endpoint.record.worker)
            if refusal and not endpoint.refusal:
                log.error("worker_refused", worker=worker, reason=refusal)
            elif endpoint.refusal and not refusal:
                log.warning("worker_accepted", worker=worker)
            if refusal != endpoint.refusal:
                endpoint.refusal = refusal
                self._changed.set()
        alive = [e for e in self.serving(Role.DECODE) if not e.refusal]
        if alive:
            self._max_model_len = max(
                e.record.max_model_len for e in preferring(alive, Role.DECODE) or alive
            )

    async def _remove(self, worker: WorkerId, *, in_order: bool = False) -> None:
        endpoint = self._endpoints.pop(worker, None)
        if endpoint is None:
            return
        endpoint.ready = False
        self._left_s |= dict.fromkeys(endpoint.record.served, time.monotonic())
        if not in_order:
            # One that leaves in order may be about to wake up.
            self._forget_sleepers()
        # The same process may live on at its address as another incarnation.
        self._sessions.renew(endpoint.record.address)
        if (task := self._checks.pop(worker, None)) is not None:
            task.cancel()
        log.info("worker_gone", worker=str(worker))
        self._generations.left(endpoint.record, in_order=in_order)
        self._judge()
        self._retired.append(endpoint)
        await self._drop_channels()

    def _forget_sleepers(self) -> None:
        if self._has_sleepers:
            self._has_sleepers = any(e.record.sleeps for e in self._endpoints.values())

    async def _drop_channels(self) -> None:
        """Close the channels of removed workers whose last stream has ended.

        A worker whose heartbeats stopped may still answer, so its channel outlives its lease.
        """
        in_use = {e.record.address for e in self._endpoints.values()}
        in_use |= {e.record.address for e in self._retired if e.work.num_requests}
        for address in {e.record.address for e in self._retired} - in_use:
            await self._sessions.drop(address)
        self._retired = [e for e in self._retired if e.work.num_requests]

    def _start_check(self, endpoint: Endpoint) -> None:
        worker = endpoint.record.worker
        running = self._checks.get(worker)
        if running is None or running.done():
            self._checks[worker] = asyncio.create_task(self._until_ready(endpoint))

    async def _until_ready(self, endpoint: Endpoint) -> None:
        retry_s = self._retry_s
        while True:
            try:
                endpoint.software = await self._check(endpoint.record)
            except BatonError as error:
                log.warning("canary_failed", worker=str(endpoint.record.worker), error=str(error))
            else:
                # The last heartbeat may be older than this answer. If it says unhealthy, the next
                # heartbeat decides.
                if not endpoint.load.unhealthy:
                    endpoint.ready, endpoint.num_missed = True, 0
                    self._forget_sleepers()
                    log.info("worker_ready", worker=str(endpoint.record.worker))
                    self._changed.set()
                    return
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)
