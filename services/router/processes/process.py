"""One of the processes of a router, seen from within: its link to the hub, and so to the others."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from services.router.processes.link import Link, answered
from services.router.processes.merge import Shown, added, snapshot
from services.router.processes.readiness import SharedReadiness
from services.router.processes.wire import Asked, Told
from shared.errors import InternalError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterable
    from types import TracebackType

    from prometheus_client import CollectorRegistry, Metric

    from services.router.processes.entrance import SharedEntrance
    from services.router.processes.work import SharedWork


class RouterProcess:
    """See Service. Parts that share something with other processes register here.

    Order: `open`, then everything else; parts register before the first await after it.
    """

    def __init__(self) -> None:
        self.link = Link(self)
        self.others = SharedReadiness(self.link)
        #: Set when the hub has ended: no request can be let in any more.
        self.is_cut_off = asyncio.Event()
        self._entrances: dict[str, SharedEntrance] = {}
        self._works: list[SharedWork] = []
        self._held: frozenset[str] = frozenset()
        self._on_order: dict[str, Callable[[Any], None]] = {}
        self._on_ask: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {}
        self._families: Callable[[], Iterable[Metric]] = tuple
        self._takes: dict[str, Callable[[Any], None]] = {
            Told.HELD: self._hold,
            Told.WORK: self._take_work,
            Told.SERVES: lambda body: self.others.take(*body),
            Told.JOINED: self._tell_newcomer,
            Told.GONE: self._forget,
            Told.ORDER: self._carry_out,
        }

    async def open(self, end: socket.socket) -> None:
        """Use this socket."""
        await self.link.open(end)

    def share_entrance(self, model: str, entrance: SharedEntrance, work: SharedWork) -> None:
        """Register a model's places and books."""
        entrance.is_held = model in self._held
        self._entrances[model] = entrance
        self._works.append(work)

    def show(self, registry: CollectorRegistry) -> None:
        """Show this registry's metrics to the others."""
        self._families = registry.collect

    def on_order(self, name: str, carry_out: Callable[[Any], None]) -> None:
        """Have orders of this name from other processes carried out."""
        self._on_order[name] = carry_out

    def on_ask(self, name: str, answer: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Have questions of this name from other processes answered."""
        self._on_ask[name] = answer

    def order(self, name: str, body: Any) -> None:
        """Have all other processes carry something out. They may do so after this returns."""
        self.link.tell(Told.ORDER, [name, body])

    async def ask_others(self, name: str, body: Any = None) -> list[Any]:
        """Return the answers of the other processes, without those that hang or end.

        Raises:
            BatonError: the error of one of them.
        """
        found = await self.link.ask(Asked.OTHERS, [name, body])
        return [answer for answer in found if answer is not None]

    async def whole(self) -> Shown:
        """Return the metrics of all processes together."""
        return Shown(added(await self.link.ask(Asked.METRICS, snapshot(self._families()))))

    def told(self, link: Link, name: str, body: Any) -> None:
        """See Service."""
        self._takes[name](body)

    def asked(self, link: Link, name: str, body: Any) -> asyncio.Future[Any]:
        """See Service."""
        if name == Asked.METRICS:
            return answered(snapshot(self._families()))
        if name == Asked.OTHERS:
            question, content = body
            answer = self._on_ask.get(question)
            # None: this process is not that far yet.
            return answered() if answer is None else asyncio.ensure_future(answer(content))
        unknown: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        unknown.set_exception(InternalError(f"a router's process does not know {name!r}"))
        return unknown

    def lost(self, link: Link) -> None:
        """See Service."""
        self.is_cut_off.set()

    def _hold(self, models: list[str]) -> None:
        self._held = frozenset(models)
        for model, entrance in self._entrances.items():
            entrance.is_held = model in self._held

    def _take_work(self, body: Any) -> None:
        for work in self._works:
            work.take(*body)

    def _tell_newcomer(self, _: Any) -> None:
        for work in self._works:
            work.tell_all()
        self.others.say_again()

    def _forget(self, body: Any) -> None:
        for work in self._works:
            work.drop(*body)
        self.others.drop(*body)

    def _carry_out(self, body: Any) -> None:
        order, content = body
        # Unknown: this process is not that far yet, and holds nothing that the order is about.
        carry_out = self._on_order.get(order)
        if carry_out is not None:
            carry_out(content)


class SharedLock:
    """A lock of all processes, by name. It is given back if this one ends."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._own = asyncio.Lock()
        self._numbers = itertools.count()
        self._taking = ""

    def locked(self) -> bool:
        """Whether this process has it or waits for it."""
        return self._own.locked()

    async def __aenter__(self) -> None:
        """Wait for it.

        Raises:
            LinkLostError: the hub has ended.
        """
        await self._own.acquire()
        self._taking = f"{self._name}#{next(self._numbers)}"
        try:
            await self._link.ask(Asked.LOCK, [self._taking, self._name])
        except BaseException:
            self._give()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give()

    def _give(self) -> None:
        self._link.tell(Told.UNLOCK, self._taking)
        self._own.release()
