"""What all lives of a worker process share."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 read at run time by dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.address import join_address

if TYPE_CHECKING:
    import asyncio

    from shared.directory.base import WorkerRecord
    from shared.engine.step.followers.followers import Followers
    from shared.model.native.core_lease import CoreLease
    from shared.rpc.auth import ClusterToken
    from shared.rpc.server import RpcServer
    from shared.rpc.service_switch import ServiceSet, ServiceSwitch
    from shared.rpc.tls.files import CertificateFiles
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.config import WorkerConfig
    from shared.worker.kv_events.publisher import KvEventPublisher
    from shared.worker.lifecycle.lifecycle import Lifecycle
    from shared.worker.lifecycle.profiling import Profiling
    from shared.worker.lifecycle.stage import Ending
    from shared.worker.parts import ReadTokenTable, WorkerParts
    from shared.worker.roles import Preference


@dataclass(frozen=True, slots=True)
class LastLife:
    """A life with an engine that has ended."""

    ending: Ending
    record: WorkerRecord
    kv_format: str
    #: Of its weights.
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The process around a life."""

    config: WorkerConfig
    #: Of all lives.
    preference: Preference
    lifecycle: Lifecycle
    adapters: WorkerAdapters
    #: The other ranks of all lives.
    followers: Followers
    #: The cores of this host, if they are shared.
    lease: CoreLease | None
    profiling: Profiling
    #: Listens from the first life on.
    server: RpcServer
    #: The services of the present life.
    switch: ServiceSwitch
    #: Adds the services of roles.
    add_services: Callable[[WorkerParts, ServiceSet], None]
    read_token_table: ReadTokenTable
    #: Of all lives; None unless the settings ask for KV events.
    events: KvEventPublisher | None
    token: ClusterToken | None
    certificates: CertificateFiles | None
    #: Set by a signal.
    stopping: asyncio.Event

    async def open(self) -> str:
        """Serve the switch's services from now on; return the address for other processes."""
        config, server = self.config, self.server
        if server.port:
            await server.set_serving(serving=True)
        else:
            await server.start(join_address(config.host, config.port))
        return config.address(server.port)

    async def close(self, no_services: ServiceSet) -> None:
        """Serve nothing but orders until the next life opens; without one, end all calls."""
        if not self.lifecycle.turning.is_set():
            await self.server.stop(0)
            return
        self.switch.put(no_services)
        await self.server.set_serving(serving=False)
