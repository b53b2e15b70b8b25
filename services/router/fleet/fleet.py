"""All workers as one, for operators and training loops. One change at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import structlog

from baton.v1 import lifecycle_pb2
from services.router.fleet.orders import QUICK_S, succeeded
from services.router.fleet.pause import FleetPause, PauseMode
from services.router.fleet.update import COMMIT_S, PREPARE_S, NewWeights, WeightUpdate
from shared.directory.base import STAGE
from shared.errors import BatonError, InvalidRequestError, UnavailableError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from services.router.admission.entrance import Entrance
    from services.router.fleet.adapters import FleetAdapters
    from services.router.fleet.orders import LifecycleOrders
    from services.router.fleet.roles import FleetRoles, Preferred
    from services.router.workers.endpoint import Endpoint
    from services.router.workers.endpoints import EndpointPool
    from services.router.workers.sessions import SessionPool
    from shared.identity import WorkerId
    from shared.request.adapter_ref import AdapterRef

log = structlog.get_logger(__name__)

#: Interval at which old weights of a worker that came back, and forgotten pauses, are looked for.
LOOK_S = 2.0
#: Time until the router knows that a worker is back in use.
READY_S = 60.0
#: Time until a worker that has changed its stage is registered again.
BACK_S = 10.0
WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
_ALL = "all workers"


class ChangeLock(Protocol):
    """A lock as asyncio's: of this process, or of several."""

    def locked(self) -> bool:
        """Whether this process has it or waits for it."""
        ...

    async def __aenter__(self) -> None:
        """Wait for it."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Give it back."""
        ...


class Fleet:
    """See `services.router.openai.operators.lifecycle.Fleet`. `keep_up` runs beside it."""

    def __init__(
        self,
        endpoints: EndpointPool,
        orders: LifecycleOrders,
        sessions: SessionPool,
        admission: Entrance,
        adapters: FleetAdapters,
        roles: FleetRoles,
        *,
        changing: ChangeLock | None = None,
        abort_answers: Callable[[], None] | None = None,
    ) -> None:
        """`changing`: held during a change. `abort_answers`: ends all answers of this router."""
        self._adapters = adapters
        self._roles = roles
        self._endpoints = endpoints
        self._orders = orders
        self._admission = admission
        self._pause = FleetPause(
            endpoints, orders, admission, abort_answers=abort_answers or sessions.abort_answers
        )
        self._changing: ChangeLock = changing or asyncio.Lock()

    async def keep_up(self) -> None:
        """Until cancelled, bring weights up to date where they are not, and end forgotten pauses.

        A worker that was lost in an update starts again with the weights of its settings.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            if self._changing.locked():
                continue
            try:
                async with self._changing:
                    await self._look()
            except BatonError as error:
                log.warning("keep_up_failed", error=str(error))

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        """Hold all requests; see `FleetPause.begin`."""
        async with self._change():
            await self._pause.begin(mode, timeout_s)

    async def resume(self) -> None:
        """Let all requests go on."""
        async with self._change():
            for error in await self._pause.end():
                raise error

    async def is_paused(self) -> bool:
        """Return whether all workers hold requests."""
        states = await self._states()
        return bool(states) and all(state.paused for state in states.values())

    async def sleep(self, level: int, mode: PauseMode, timeout_s: float) -> None:
        """Have all workers give their memory back.

        Raises:
            BatonError: one could not; the others wake up again.
        """
        if mode is PauseMode.KEEP:
            raise InvalidRequestError(
                "mode must be abort or wait: sleep keeps no request's KV", param="mode"
            )
        async with self._change():
            was_paused = await self._is_kept_paused()
            await self._pause_for_change(mode, timeout_s, was_paused=was_paused, leased=False)
            request = lifecycle_pb2.SleepRequest(level=level)
            workers = self._workers()
            try:
                succeeded(
                    await self._orders.each(
                        workers, lambda stub: stub.Sleep(request, timeout=COMMIT_S)
                    )
                )
            except BaseException:
                await self._wake(TAGS)
                await self._pause_again(was_paused=was_paused)
                raise
            await self._come_back({each.name: lifecycle_pb2.STAGE_ASLEEP for each in workers})
            await self._until(lambda: all(each.record.sleeps for each in self._workers()), "asleep")
            # Requests wait for the workers to wake up, in all routers; see EndpointPool.
            self._admission.release()

    async def wake_up(self, tags: Collection[str]) -> bool:
        """Have all workers load what the tags name; return whether they serve.

        Raises:
            BatonError: a worker could not.
        """
        async with self._change():
            return await self._wake(tags)

    async def is_sleeping(self) -> bool:
        """Return whether a worker sleeps."""
        return any(each.record.sleeps for each in self._workers())

    async def update_weights(
        self, path: str, version: str | None, mode: PauseMode, timeout_s: float
    ) -> Mapping[str, str]:
        """Replace the weights of all workers, or of none; return lost workers' errors.

        Running requests finish or end before, by `mode`.

        Raises:
            BatonError: a worker could not prepare, or requests did not finish; all is as before.
        """
        if mode is PauseMode.KEEP:
            raise InvalidRequestError(
                "mode must be abort or wait: an answer has one version of the weights", param="mode"
            )
        async with self._change():
            was_paused = await self._is_kept_paused()
            workers = self._workers()
            if not workers:
                raise UnavailableError("no worker is registered")
            generation = 1 + max(each.record.generation for each in workers)
            weights = NewWeights(path, version or str(generation), generation)
            update = WeightUpdate(self._orders, workers, weights)
            await update.prepare()
            try:
                await self._pause_for_change(
                    mode, timeout_s, was_paused=was_paused, leased=not was_paused
                )
                await self._require(workers, keep_paused=was_paused)
            except BaseException:
                await update.drop()
                raise
            # From here on there is no way back: a request must not cancel the rest.
            finishing = asyncio.create_task(self._commit(update, keep_paused=was_paused))
            return await asyncio.shield(finishing)

    async def weight_versions(self) -> Mapping[str, str]:
        """Return the version of each worker's weights, by its name."""
        return {each.name: each.record.weight_version for each in self._workers()}

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> AdapterRef:
        """Have all workers load an adapter, or none; see `FleetAdapters.load`."""

        async def load() -> AdapterRef:
            async with self._change():
                return await self._adapters.load(name, path, replaces=replaces)

        # A client that goes away leaves no order half carried out.
        return await asyncio.shield(asyncio.create_task(load()))

    async def unload_adapter(self, name: str) -> None:
        """Take an adapter's name away on all workers; see `FleetAdapters.unload`."""

        async def unload() -> None:
            async with self._change():
                await self._adapters.unload(name)

        await asyncio.shield(asyncio.create_task(unload()))

    async def prefer(self, worker: str, role: Role) -> Preferred:
        """Have a worker prefer a role; see `FleetRoles.prefer`."""
        async with self._change():
            return await self._roles.prefer(worker, role)

    async def start_profile(self, prefix: str) -> None:
        """Have all workers record what they compute.

        Raises:
            BatonError: one could not; the others record nothing either.
        """
        request = lifecycle_pb2.StartProfileRequest(prefix=prefix)
        answers = await self._orders.each(
            self._workers(), lambda stub: stub.StartProfile(request, timeout=QUICK_S)
        )
        try:
            succeeded(answers)
        except BatonError:
            begun = [each for each, got in answers.items() if not isinstance(got, BatonError)]
            await self._stop_profiles(begun)
            raise

    async def stop_profile(self) -> Mapping[str, str]:
        """End the records; return each worker's file, by its name.

        A worker that has begun another life meanwhile records no more: it has no file here.

        Raises:
            BatonError: none was recorded, or a file could not be written.
        """
        answers = await self._stop_profiles(self._workers())
        if any(not isinstance(answer, BatonError) for answer in answers.values()):
            answers = {e: a for e, a in answers.items() if not isinstance(a, InvalidRequestError)}
        return {endpoint.name: answer.path for endpoint, answer in succeeded(answers).items()}

    async def _stop_profiles(
        self, workers: Sequence[Endpoint]
    ) -> dict[Endpoint, lifecycle_pb2.StopProfileResponse | BatonError]:
        request = lifecycle_pb2.StopProfileRequest()
        return await self._orders.each(
            workers, lambda stub: stub.StopProfile(request, timeout=COMMIT_S)
        )

    def _workers(self) -> list[Endpoint]:
        return [*self._endpoints.of_role(Role.DECODE), *self._endpoints.of_role(Role.PREFILL)]

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        async with self._changing:
            yield

    async def _states(self) -> dict[Endpoint, lifecycle_pb2.GetStateResponse]:
        request = lifecycle_pb2.GetStateRequest()
        return succeeded(
            await self._orders.each(
                self._workers(), lambda stub: stub.GetState(request, timeout=QUICK_S)
            )
        )

    async def _is_kept_paused(self) -> bool:
        """Return whether a worker is paused until it is resumed."""
        # A pause with a lease is what a lost router left of an update.
        return any(each.paused and not each.leased for each in (await self._states()).values())

    async def _pause_for_change(
        self, mode: PauseMode, timeout_s: float, *, was_paused: bool, leased: bool
    ) -> None:
        """Pause.

        Raises:
            BatonError: a worker did not pause in time; all are paused or go on, as before.
        """
        try:
            await self._pause.begin(mode, timeout_s, leased=leased)
        except BaseException:
            await self._pause_again(was_paused=was_paused)
            raise

    async def _pause_again(self, *, was_paused: bool) -> None:
        """Pause again after a failed change, if the workers were paused before it."""
        if was_paused:
            await self._pause.begin(PauseMode.KEEP, QUICK_S)

    async def _wake(self, tags: Collection[str]) -> bool:
        request = lifecycle_pb2.WakeUpRequest(weights=WEIGHTS in tags, kv_cache=KV_CACHE in tags)
        answers = succeeded(
            await self._orders.each(
                self._workers(), lambda stub: stub.WakeUp(request, timeout=PREPARE_S)
            )
        )
        await self._come_back({worker.name: each.stage for worker, each in answers.items()})
        serve = all(each.stage == lifecycle_pb2.STAGE_SERVING for each in answers.values())
        if serve:
            await self._until(lambda: all(each.usable for each in self._workers()), "awake")
            await self._pause.end()
        return serve

    async def _come_back(self, stages: Mapping[str, int]) -> None:
        """Wait until the router knows workers, by name, at the stage that they have reached.

        Between two of its lives a worker is not registered, so the next order would pass it over.
        One that does not come back in time is left out.
        """

        def are_back() -> bool:
            there = {each.name: _stage_of(each) for each in self._workers()}
            return all(there.get(name) == stage for name, stage in stages.items())

        try:
            async with asyncio.timeout(BACK_S):
                await self._endpoints.wait_until(are_back)
        except TimeoutError:
            log.warning("workers_not_back", workers=sorted(stages), after_s=BACK_S)

    async def _commit(self, update: WeightUpdate, *, keep_paused: bool) -> Mapping[str, str]:
        try:
            ids, lost = await update.commit()
            await self._until(
                lambda: {each.record.worker for each in self._workers()} >= set(ids), "back"
            )
            if not keep_paused:
                # A paused worker answers no canary.
                await self._pause.release_workers()
                await self._until(lambda: self._are_ready(ids), "ready with the new weights")
        finally:
            if not keep_paused:
                await self._pause.end()
        return lost

    async def _require(self, workers: Collection[Endpoint], *, keep_paused: bool) -> None:
        """Check that these are all still there.

        Raises:
            UnavailableError: one has left meanwhile; the others go on.
        """
        present = set(self._workers())
        left = sorted(each.name for each in workers if each not in present)
        if left:
            if not keep_paused:
                await self._pause.end()
            raise UnavailableError(f"{', '.join(left)} left before the weights were exchanged")

    def _are_ready(self, ids: Collection[WorkerId]) -> bool:
        """Return whether all of these that are still there can be used, or sleep."""
        found = [each for each in self._workers() if each.record.worker in ids]
        return all(each.usable or each.record.sleeps for each in found)

    async def _until(self, condition: Callable[[], bool], state: str) -> None:
        """Wait until the router knows of all workers what they have reported.

        Raises:
            UnavailableError: that took too long.
        """
        try:
            async with asyncio.timeout(READY_S):
                await self._endpoints.wait_until(condition)
        except TimeoutError as error:
            raise UnavailableError(f"{_ALL} were not {state} within {READY_S:g} s") from error

    async def _look(self) -> None:
        """Do all that `keep_up` does, once; what fails keeps nothing else from being done."""
        for part in (self._update_old, self._tell_adapters, self._end_forgotten_pause):
            try:
                await part()
            except BatonError as error:
                log.warning("keep_up_failed", error=str(error))

    async def _update_old(self) -> None:
        """Update each worker with weights from before the last update, whatever others do.

        Raises:
            BatonError: some could not be updated.
        """
        newest = self._endpoints.updated_to()
        if newest is None:
            return
        failed: dict[Endpoint, BatonError] = {}
        for each in self._workers():
            if each.record.generation >= newest.generation:
                continue
            log.warning("weights_out_of_date", worker=each.name, version=newest.weight_version)
            weights = NewWeights(newest.weight_path, newest.weight_version, newest.generation)
            update = WeightUpdate(self._orders, [each], weights)
            try:
                await update.prepare()
                await update.commit()
            except BatonError as error:
                failed[each] = error
        succeeded(failed)

    async def _tell_adapters(self) -> None:
        """Tell new workers of the adapters of all."""
        await self._orders.keep({each.record.address for each in self._workers()})
        await self._adapters.catch_up()

    async def _end_forgotten_pause(self) -> None:
        if self._admission.is_held:
            states = (await self._states()).values()
            if not any(state.paused for state in states):
                self._admission.release()


def _stage_of(endpoint: Endpoint) -> int:
    """Return the stage by its record; unspecified if it is one of a later version."""
    name = endpoint.record.labels.get(STAGE, "serving")
    stages = dict(lifecycle_pb2.Stage.items())
    return stages.get(f"STAGE_{name.upper()}", lifecycle_pb2.STAGE_UNSPECIFIED)
