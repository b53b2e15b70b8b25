"""The workers of all models as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from services.router.fleet.fleet import TAGS
from services.router.fleet.pause import PauseMode
from services.router.fleet.roles import no_worker
from shared.errors import InvalidRequestError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from services.router.catalogue.pool import Pool
    from services.router.fleet.fleet import Fleet
    from services.router.fleet.roles import Preferred
    from shared.identity import Role
    from shared.request.adapter_ref import AdapterRef

T = TypeVar("T")


class AllFleets:
    """See `services.router.openai.operators.lifecycle.Fleet`.

    A change is one of all models with workers. One that fails for a model is undone for the others,
    as far as it can be undone: what was paused or asleep before stays so.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        """See Fleet."""
        paused = await self._those(lambda f: f.is_paused())

        async def undo(fleet: Fleet) -> None:
            if fleet not in paused:
                await fleet.resume()

        await self._change(lambda f: f.pause(mode, timeout_s), undo=undo)

    async def resume(self) -> None:
        """See Fleet."""
        await self._change(lambda f: f.resume())

    async def is_paused(self) -> bool:
        """See Fleet."""
        states = await self._change(lambda f: f.is_paused())
        return bool(states) and all(states)

    async def sleep(self, level: int, mode: PauseMode, timeout_s: float) -> None:
        """See Fleet."""
        asleep = await self._those(lambda f: f.is_sleeping())
        paused = await self._those(lambda f: f.is_paused())

        async def undo(fleet: Fleet) -> None:
            if fleet in asleep:
                return
            await fleet.wake_up(TAGS)
            if fleet in paused:
                await fleet.pause(PauseMode.KEEP, timeout_s)

        await self._change(lambda f: f.sleep(level, mode, timeout_s), undo=undo)

    async def wake_up(self, tags: Collection[str]) -> bool:
        """See Fleet."""
        return all(await self._change(lambda f: f.wake_up(tags)))

    async def is_sleeping(self) -> bool:
        """See Fleet."""
        return any(await self._change(lambda f: f.is_sleeping()))

    async def update_weights(
        self, path: str, version: str | None, mode: PauseMode, timeout_s: float
    ) -> Mapping[str, str]:
        """Refuse: a checkpoint is of one model.

        Raises:
            InvalidRequestError: always.
        """
        names = ", ".join(pool.name for pool in self._pools)
        message = f"model must name the one whose weights are replaced: one of {names}"
        raise InvalidRequestError(message, param="model")

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> AdapterRef:
        """Refuse: an adapter is of one model.

        Raises:
            InvalidRequestError: always.
        """
        names = ", ".join(pool.name for pool in self._pools)
        message = f"model must name the one that the adapter changes: one of {names}"
        raise InvalidRequestError(message, param="model")

    async def unload_adapter(self, name: str) -> None:
        """See AdapterFleet.

        Raises:
            ModelNotFoundError: no model has an adapter of this name.
            InvalidRequestError: several have.
        """
        found = [pool for pool in self._pools if pool.parts.adapters.find(name) is not None]
        if not found:
            raise ModelNotFoundError(f"The lora adapter {name[:200]!r} cannot be found.")
        if len(found) > 1:
            names = ", ".join(pool.name for pool in found)
            message = f"model must name the one whose adapter {name!r} is: one of {names}"
            raise InvalidRequestError(message, param="model")
        await found[0].parts.fleet.unload_adapter(name)

    async def prefer(self, worker: str, role: Role) -> Preferred:
        """See RoleFleet. Workers' names are unique among all models.

        Raises:
            InvalidRequestError: there is no such worker.
        """
        everyone = [each for pool in self._pools for each in pool.endpoints.everyone()]
        for pool in self._pools:
            if any(each.name == worker for each in pool.endpoints.everyone()):
                return await pool.parts.fleet.prefer(worker, role)
        raise no_worker(worker, everyone)

    async def weight_versions(self) -> Mapping[str, str]:
        """See Fleet."""
        return _joined(await self._change(lambda f: f.weight_versions()))

    async def start_profile(self, prefix: str) -> None:
        """See Fleet."""
        await self._change(lambda f: f.start_profile(prefix), undo=lambda f: f.stop_profile())

    async def stop_profile(self) -> Mapping[str, str]:
        """See Fleet."""
        return _joined(await self._change(lambda f: f.stop_profile()))

    async def _those(self, are: Callable[[Fleet], Awaitable[bool]]) -> list[Fleet]:
        """Return the fleets with workers for which `are` is true."""
        fleets = self._fleets()
        answers = await asyncio.gather(*map(are, fleets))
        return [fleet for fleet, answer in zip(fleets, answers, strict=True) if answer]

    def _fleets(self) -> list[Fleet]:
        return [pool.parts.fleet for pool in self._pools if pool.has_workers]

    async def _change(
        self,
        change: Callable[[Fleet], Awaitable[T]],
        *,
        undo: Callable[[Fleet], Awaitable[object]] | None = None,
    ) -> list[T]:
        """Change all at once; return their answers.

        Raises:
            BatonError: the first error; `undo` was called for those that did not fail.
        """
        fleets = self._fleets()
        answers = await asyncio.gather(*map(change, fleets), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors:
            if undo is not None:
                done = [
                    fleet
                    for fleet, answer in zip(fleets, answers, strict=True)
                    if not isinstance(answer, BaseException)
                ]
                await asyncio.gather(*map(undo, done), return_exceptions=True)
            raise errors[0]
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def _joined(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for each in found for name, value in each.items()}
