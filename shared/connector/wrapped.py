"""What connectors have in common that add something to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.connector.base import Connector, Offer
    from shared.errors import TransferFailure
    from shared.identity import WorkerId


class WrappedConnector:
    """A `Connector` without its transfers, which are for the subclass to open and connect."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """See `Connector.name`."""
        return self._inner.name

    @property
    def takes_parts(self) -> bool:
        """See `Connector.takes_parts`."""
        return self._inner.takes_parts

    @property
    def takes_memory(self) -> bool:
        """See `Connector.takes_memory`."""
        return self._inner.takes_memory

    @property
    def refusals(self) -> Mapping[TransferFailure, int]:
        """See `Connector.refusals`."""
        return self._inner.refusals

    async def start(self) -> None:
        """See `Connector.start`."""
        await self._inner.start()

    async def close(self) -> None:
        """See `Connector.close`."""
        await self._inner.close()

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return self._inner.offer()

    async def can_reach(self, offer: Offer) -> bool:
        """See `Connector.can_reach`."""
        return await self._inner.can_reach(offer)

    def meet(self, worker: WorkerId, offer: Offer) -> None:
        """See `Connector.meet`."""
        self._inner.meet(worker, offer)
