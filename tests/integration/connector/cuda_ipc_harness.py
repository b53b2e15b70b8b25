"""The connector suite's harness for `cuda_ipc`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from shared.connector.device.cuda_ipc import CudaIpcConnector
from shared.connector.protocol.frame import Frame, Kind
from tests.fakes.host_device import HostDevice
from tests.integration.connector.harnesses import ShmHarness, ShmRaw

if TYPE_CHECKING:
    from pathlib import Path

    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.transport import Transport
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class CudaIpcHarness(ShmHarness):
    """Over memory of the host: where CUDA is not."""

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        connector = CudaIpcConnector(
            worker=worker, memory=HostDevice(memory), runtime_dir=self.runtime_dir, limits=limits
        )
        return cast("Transport", connector)

    async def raw(self, address: str) -> ShmRaw:
        return CudaIpcRaw(type(self.runtime_dir)(address))


class CudaIpcRaw(ShmRaw):
    #: Whether it opens its memory to who lets it in.
    honest = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._greeted = True  # a greeting shows nothing

    def door(self) -> Frame:
        device = HostDevice(self._memory)
        return Frame(
            kind=Kind.DOOR,
            num_blocks=device.num_blocks,
            length=device.num_bytes,
            body=device.export(),
        )

    async def receive(self) -> Frame:
        frame = await super().receive()
        if frame.kind is Kind.GRANT and self.honest:
            await self.send(self.door().encode())
        return frame
