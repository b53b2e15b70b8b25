"""Adapters on all workers, or on none; and on workers that join later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from baton.v1 import worker_pb2
from services.router.fleet.orders import QUICK_S, succeeded
from shared.errors import (
    BatonError,
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
    UnsupportedError,
)
from shared.request.adapter_ref import MAX_NAME_CHARS, MAX_PATH_CHARS, AdapterRef, adapter_from_wire

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from services.router.fleet.orders import WorkerOrders
    from services.router.workers.adapters import PoolAdapters
    from services.router.workers.endpoint import Endpoint
    from services.router.workers.endpoints import EndpointPool
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

#: Of reading and checking an adapter.
LOAD_S = 300.0
#: Fields of requests, for errors.
NAME, PATH = "lora_name", "lora_path"


class FleetAdapters:
    """Orders to workers about adapters. One at a time: see `Fleet`."""

    def __init__(
        self,
        endpoints: EndpointPool,
        orders: WorkerOrders,
        pool: PoolAdapters,
        *,
        model_names: Collection[str],
    ) -> None:
        self._endpoints = endpoints
        self._orders = orders
        self._pool = pool
        self._model_names = model_names
        #: Workers that were ordered to load what the others have.
        self._caught_up: set[WorkerId] = set()

    async def load(self, name: str, path: str, *, replaces: bool) -> AdapterRef:
        """Have all workers that serve adapters load one; return it.

        `replaces`: the name may stand for another adapter, which requests do not get any more.

        Raises:
            InvalidRequestError: the name is taken, or the adapter cannot be used.
            BatonError: a worker could not load it, or they read different files; none keeps it.
        """
        self._check(name, path, replaces=replaces)
        workers = self._serving()
        request = worker_pb2.LoadAdapterRequest(name=name, path=path, load_inplace=replaces)
        answers = await self._orders.each(
            workers, lambda stub: stub.LoadAdapter(request, timeout=LOAD_S)
        )
        try:
            loaded = succeeded(answers)
            adapter = _one({e: answer.adapter.digest for e, answer in loaded.items()}, loaded)
        except BaseException as error:
            await self._undo(name, answers, error)
            raise
        self._pool.loaded(adapter)
        log.info("adapter_loaded", name=name, path=adapter.path, digest=adapter.digest.hex()[:12])
        return adapter

    async def unload(self, name: str) -> None:
        """Take the name away on all workers; running requests keep the adapter until they end.

        Raises:
            ModelNotFoundError: there is no adapter of this name.
            BatonError: a worker could not be told, or sleeps; all keep it.
        """
        adapter = self._pool.find(name)
        if adapter is None:
            message = f"The lora adapter {name[:200]!r} cannot be found."
            raise ModelNotFoundError(message)
        request = worker_pb2.UnloadAdapterRequest(name=name)
        answers = await self._orders.each(
            self._serving(), lambda stub: stub.UnloadAdapter(request, timeout=QUICK_S)
        )
        told = {e: a for e, a in answers.items() if not isinstance(a, ModelNotFoundError)}
        try:
            succeeded(told)
        except BaseException:
            gone = [e for e, answer in told.items() if not isinstance(answer, BatonError)]
            for endpoint in gone:
                await self._restore(endpoint, adapter)
            raise
        self._pool.unloaded(name)
        log.info("adapter_unloaded", name=name)

    async def catch_up(self) -> None:
        """Have workers that are new to this router load what the others have, once.

        A request for an adapter that one lacks makes it load that, too; this keeps an adapter
        when all workers that had it have left.
        """
        alive = list(self._endpoints.everyone())
        self._caught_up &= {each.record.worker for each in alive}
        # Also when none is new: the pool notes who reports, before all of them sleep.
        wanted = self._pool.all()
        new = [
            each
            for each in alive
            if each.usable
            and each.adapters.max_adapters
            and each.record.worker not in self._caught_up
        ]
        await asyncio.gather(*(self._catch_up(each, wanted) for each in new))
        await self._orders.keep({each.record.address for each in alive})

    async def _catch_up(self, endpoint: Endpoint, wanted: Collection[AdapterRef]) -> None:
        self._caught_up.add(endpoint.record.worker)
        for adapter in wanted:
            state = endpoint.adapters.named(adapter.name)
            if state is None or state.adapter.digest != adapter.digest:
                await self._restore(endpoint, adapter)

    def _check(self, name: str, path: str, *, replaces: bool) -> None:
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
            message = f"{NAME} must have 1 to {MAX_NAME_CHARS} printable characters"
            raise InvalidRequestError(message, param=NAME)
        if not 0 < len(path) <= MAX_PATH_CHARS or "\0" in path:
            message = f"{PATH} must have 1 to {MAX_PATH_CHARS} characters"
            raise InvalidRequestError(message, param=PATH)
        if name in self._model_names:
            raise InvalidRequestError(f"{NAME}: {name!r} is a model's own name", param=NAME)
        if not replaces and self._pool.find(name) is not None:
            message = (
                f"The lora adapter {name!r} has already been loaded. To load it in place of that "
                "one, set 'load_inplace' to true."
            )
            raise InvalidRequestError(message, param=NAME)

    def _serving(self) -> list[Endpoint]:
        alive = list(self._endpoints.everyone())
        serving = [each for each in alive if each.adapters.max_adapters]
        asleep = sorted(each.name for each in serving if each.record.sleeps)
        if asleep:
            raise UnavailableError(f"{', '.join(asleep)} sleep: wake them up first")
        if serving:
            return serving
        if not alive:
            raise UnavailableError("no worker is registered")
        raise UnsupportedError("no worker serves adapters: start them with --enable-lora")

    async def _undo(
        self,
        name: str,
        answers: Mapping[Endpoint, worker_pb2.LoadAdapterResponse | BatonError],
        why: BaseException,
    ) -> None:
        """Give every worker back what the name stood for there."""
        for endpoint, answer in answers.items():
            before = endpoint.adapters.named(name)
            if isinstance(answer, BatonError):
                # Refused, or it may have loaded it after all.
                if before is None and isinstance(answer, UnavailableError):
                    await self._drop(endpoint, name)
            elif answer.HasField("replaced"):
                await self._restore(endpoint, adapter_from_wire(answer.replaced))
            elif before is None or before.adapter.digest != answer.adapter.digest:
                await self._drop(endpoint, name)
        log.warning("adapter_not_loaded", name=name, error=str(why))

    async def _drop(self, endpoint: Endpoint, name: str) -> None:
        request = worker_pb2.UnloadAdapterRequest(name=name)
        try:
            await self._orders.one(
                endpoint, lambda stub: stub.UnloadAdapter(request, timeout=QUICK_S)
            )
        except BatonError as error:
            log.warning("adapter_not_dropped", name=name, worker=endpoint.name, error=str(error))

    async def _restore(self, endpoint: Endpoint, adapter: AdapterRef) -> None:
        """Have one worker load this adapter, and no other content, under its name."""
        request = worker_pb2.LoadAdapterRequest(
            name=adapter.name, path=adapter.path, load_inplace=True, digest=adapter.digest
        )
        try:
            await self._orders.one(endpoint, lambda stub: stub.LoadAdapter(request, timeout=LOAD_S))
        except BatonError as error:
            log.warning(
                "adapter_not_restored",
                name=adapter.name,
                path=adapter.path,
                worker=endpoint.name,
                error=str(error),
            )


def _one(
    digests: Mapping[Endpoint, bytes],
    loaded: Mapping[Endpoint, worker_pb2.LoadAdapterResponse],
) -> AdapterRef:
    """Return the adapter that all have loaded.

    Raises:
        InvalidRequestError: they read different files under the path.
    """
    by_digest = {digest: endpoint.name for endpoint, digest in digests.items()}
    if len(by_digest) > 1:
        names = " and ".join(by_digest.values())
        raise InvalidRequestError(f"{names} have different files there", param=PATH)
    return adapter_from_wire(next(iter(loaded.values())).adapter)
