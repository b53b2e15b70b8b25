"""The adapters of a pool: what its live workers report, and what this router has just ordered.

All routers must find the same adapter by a name, without asking each other. So a name that stands
for different content on different workers means what most of them have, and among equals what the
worker has that joined first: one that starts again with old files decides nothing.

A worker between two lives reports nothing: until another one does, its last report counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from shared.request.adapter_ref import AdapterRef  # noqa: TC001 used in a dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.workers.endpoint import Endpoint

log = structlog.get_logger(__name__)

#: Workers have reported the effect of an order within this time.
REPORTED_S = 10.0


@dataclass(frozen=True, slots=True)
class _Order:
    #: None: unloaded.
    adapter: AdapterRef | None
    at_s: float


class PoolAdapters:
    """Finds adapters by name. See `services.router.models.Adapters`."""

    def __init__(
        self,
        endpoints: Callable[[], Iterable[Endpoint]],
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str, AdapterRef | None], None] = lambda *_: None,
    ) -> None:
        """`endpoints`: returns the live workers. `tell` is called after each order, to `note` it
        in other processes of the router.
        """
        self._endpoints = endpoints
        #: The last that served adapters.
        self._reporting: list[Endpoint] = []
        self._clock = clock
        self._tell = tell
        #: This router's last order for each name, as long as it may matter.
        self._orders: dict[str, _Order] = {}
        #: Names whose workers differ, which the log has.
        self._told: set[str] = set()

    def find(self, name: str) -> AdapterRef | None:
        """Return the adapter of a name; None if no worker has it."""
        order = self._orders.get(name)
        if order is not None and self._clock() - order.at_s < REPORTED_S:
            return order.adapter
        found: dict[bytes, list[tuple[int, AdapterRef]]] = {}
        for endpoint in self._reports():
            state = endpoint.adapters.named(name)
            if state is not None and not endpoint.refusal:
                ref = state.adapter
                found.setdefault(ref.digest, []).append((endpoint.record.joined_ms, ref))
        if not found:
            self._orders.pop(name, None)
            self._told.discard(name)
            return None
        if len(found) == 1:
            self._told.discard(name)
            [holders] = found.values()
            return min(holders, key=_age)[1]
        return self._decide(name, found, order)

    def all(self) -> list[AdapterRef]:
        """Return the adapter of every name, in the order of the names."""
        names = {name for name, order in self._orders.items() if order.adapter is not None}
        for endpoint in self._reports():
            names.update(endpoint.adapters.names)
        found = (self.find(name) for name in sorted(names))
        return [adapter for adapter in found if adapter is not None]

    def loaded(self, adapter: AdapterRef) -> None:
        """Note that workers were ordered to serve this adapter under its name, and do."""
        self.note(adapter.name, adapter)
        self._tell(adapter.name, adapter)

    def unloaded(self, name: str) -> None:
        """Note that no worker was left with the name."""
        self.note(name, None)
        self._tell(name, None)

    def note(self, name: str, adapter: AdapterRef | None) -> None:
        """Note what a name stands for since now; None: nothing."""
        self._orders[name] = _Order(adapter, self._clock())

    def _reports(self) -> list[Endpoint]:
        """Return the workers whose reports count."""
        alive = list(self._endpoints())
        serving = [each for each in alive if each.adapters.max_adapters]
        if serving or any(each.has_reported for each in alive):
            self._reporting = serving
        return self._reporting

    def _decide(
        self,
        name: str,
        found: dict[bytes, list[tuple[int, AdapterRef]]],
        order: _Order | None,
    ) -> AdapterRef:
        if order is not None and order.adapter is not None and order.adapter.digest in found:
            chosen = order.adapter.digest
        else:
            chosen = min(found, key=lambda each: (-len(found[each]), min(map(_age, found[each]))))
        if name not in self._told:
            self._told.add(name)
            log.warning(
                "adapters_differ",
                name=name,
                used=chosen.hex()[:12],
                num_workers={digest.hex()[:12]: len(each) for digest, each in found.items()},
            )
        return min(found[chosen], key=_age)[1]


def _age(holder: tuple[int, AdapterRef]) -> tuple[int, str]:
    return holder[0], holder[1].path
