"""The adapters of a scripted worker: its disk is a table, and it does what the contract says."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from baton.v1 import worker_pb2, worker_pb2_grpc
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad
from shared.directory.wire import adapter_state_to_wire
from shared.errors import (
    AdapterNotLoadedError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from shared.request.adapter_ref import AdapterRef, adapter_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

LOAD_MS = 40.0


def digest(content: str) -> bytes:
    """What workers compute of an adapter's files."""
    return hashlib.sha256(content.encode()).digest()


class NamedAdapters:
    """Adapters of a model without workers, for `ServedModels`."""

    def __init__(self, *names: str) -> None:
        self._refs: dict[str, AdapterRef] = {}
        for name in names:
            self.hold(name, f"/a/{name}")

    def hold(self, name: str, path: str) -> AdapterRef:
        """Have an adapter by this name."""
        self._refs[name] = AdapterRef(name, digest(path), path)
        return self._refs[name]

    def find(self, name: str) -> AdapterRef | None:
        """See Adapters."""
        return self._refs.get(name)

    def all(self) -> list[AdapterRef]:
        """See Adapters."""
        return [self._refs[name] for name in sorted(self._refs)]


@dataclass(slots=True, kw_only=True)
class ScriptedAdapters(worker_pb2_grpc.WorkerServicer):
    """Serves the adapters RPCs of a worker."""

    #: By path: the content of a folder.
    disk: Mapping[str, str] = field(default_factory=dict)
    max_adapters: int = 0
    adapters: dict[str, AdapterState] = field(default_factory=dict)
    #: Raised by the next order to load.
    load_error: Exception | None = None
    orders: list[Any] = field(default_factory=list)
    _done: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def load(self, **facts: Any) -> WorkerLoad:
        """Return what it reports with a heartbeat."""
        states = tuple(self.adapters[name] for name in sorted(self.adapters))
        return WorkerLoad(adapters=states, max_adapters=self.max_adapters, **facts)

    def hold(self, name: str, path: str, place: AdapterPlace = AdapterPlace.DEVICE) -> AdapterRef:
        """Have an adapter from the start."""
        ref = AdapterRef(name, digest(self.disk[path]), path)
        self.adapters[name] = AdapterState(adapter=ref, rank=8, place=place, load_ms=LOAD_MS)
        return ref

    async def wait_loads(self, count: int) -> None:
        """Until this many more adapters are loaded."""
        for _ in range(count):
            await self._done.acquire()

    async def LoadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.LoadAdapterRequest, context: Any
    ) -> worker_pb2.LoadAdapterResponse:
        """See the contract."""
        self.orders.append(request)
        if not self.max_adapters:
            raise UnsupportedError("this worker serves no adapters", param="adapter")
        if self.load_error is not None:
            error, self.load_error = self.load_error, None
            raise error
        if request.path not in self.disk:
            raise InvalidRequestError(f"there is no adapter in {request.path}", param="path")
        if request.digest not in (b"", digest(self.disk[request.path])):
            raise AdapterNotLoadedError(f"{request.path} holds another adapter")
        before = self.adapters.get(request.name)
        if before is not None and not request.load_inplace:
            raise InvalidRequestError(f"{request.name} is loaded", param="name")
        ref = self.hold(request.name, request.path)
        self._done.release()
        answer = worker_pb2.LoadAdapterResponse(
            adapter=adapter_to_wire(ref), rank=8, load_ms=LOAD_MS
        )
        if before is not None and before.adapter != ref:
            answer.replaced.CopyFrom(adapter_to_wire(before.adapter))
        return answer

    async def UnloadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.UnloadAdapterRequest, context: Any
    ) -> worker_pb2.UnloadAdapterResponse:
        """See the contract."""
        self.orders.append(request)
        state = self.adapters.get(request.name)
        if state is None or request.digest not in (b"", state.adapter.digest):
            raise ModelNotFoundError(f"there is no adapter {request.name}")
        del self.adapters[request.name]
        return worker_pb2.UnloadAdapterResponse(adapter=adapter_to_wire(state.adapter))

    async def ListAdapters(  # noqa: N802 the name in the contract
        self, request: worker_pb2.ListAdaptersRequest, context: Any
    ) -> worker_pb2.ListAdaptersResponse:
        """See the contract."""
        states = [adapter_state_to_wire(each) for each in self.load().adapters]
        return worker_pb2.ListAdaptersResponse(adapters=states, max_adapters=self.max_adapters)

    def place(self, name: str, place: AdapterPlace) -> None:
        """Move an adapter."""
        self.adapters[name] = replace(self.adapters[name], place=place)
