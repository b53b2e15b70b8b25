"""The process that counts for all processes of a router, and passes their messages on.

It serves no client and knows no worker. A process that ends gives back all it held, by the end of
its link; so what is counted here is true whatever kills it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from services.router.processes.boards import PlannerTable
from services.router.processes.counting import Locks, Permits, Places
from services.router.processes.link import Link, answered
from services.router.processes.merge import MetricSums
from services.router.processes.wire import Asked, Told
from services.router.routing.room import Left

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from services.router.admission.entrance import AdmissionLimits

log = structlog.get_logger(__name__)

#: Time for another process's answer. One that hangs is left out.
OTHERS_S = 2.0


class Hub:
    """See Service. The end of every process's link."""

    def __init__(self, limits: Mapping[str, AdmissionLimits]) -> None:
        """Count with these limits, by the models' own names."""
        self._places = {model: Places(each) for model, each in limits.items()}
        self._tables = {model: PlannerTable() for model in limits}
        self._permits = Permits()
        self._locks = Locks()
        self._metrics = MetricSums()
        self._processes: dict[Link, int] = {}
        self._num_processes = 0
        self._is_empty = asyncio.Event()
        #: Those that answer: one that still starts would let the others wait.
        self._ready: set[Link] = set()
        self._takes = self._all_takes()
        self._answers = self._all_answers()

    async def add(self, end: socket.socket) -> Link:
        """Serve a process at the other end."""
        link = Link(self)
        self._num_processes += 1
        number = self._num_processes
        self._processes[link] = number
        self._is_empty.clear()
        await link.open(end)
        link.tell(Told.HELD, self._held())
        self._tell_others(link, Told.JOINED, [number])
        return link

    async def become_empty(self) -> None:
        """Return when no process is left."""
        if self._processes:
            await self._is_empty.wait()

    def places(self, model: str) -> Places:
        """Return the places of a model."""
        return self._places[model]

    def told(self, link: Link, name: str, body: Any) -> None:
        """See Service."""
        self._takes[name](link, self._processes[link], body)

    def asked(self, link: Link, name: str, body: Any) -> asyncio.Future[Any]:
        """See Service."""
        return self._answers[name](link, self._processes[link], body)

    def lost(self, link: Link) -> None:
        """See Service."""
        process = self._processes.pop(link)
        self._ready.discard(link)
        for places in self._places.values():
            places.drop(process)
        for table in self._tables.values():
            table.drop(process)
        self._permits.drop(process)
        self._locks.drop(process)
        self._metrics.end(process)
        self._tell_others(link, Told.GONE, [process])
        if not self._processes:
            self._is_empty.set()

    def _all_takes(self) -> dict[str, Callable[[Link, int, Any], None]]:
        return {
            Told.READY: lambda link, _, __: self._ready.add(link),
            Told.ROOM: self._note_room,
            Told.LEAVE: lambda _, process, body: self._places[body[0]].leave(
                (process, body[1]), body[2], body[3]
            ),
            Told.PAID: lambda _, process, body: self._permits.pay((process, body[0]), body[1]),
            Told.UNLOCK: lambda _, process, body: self._locks.give((process, body)),
            Told.WORK: lambda link, process, body: self._tell_others(
                link, Told.WORK, [process, body]
            ),
            Told.SERVES: lambda link, process, body: self._tell_others(
                link, Told.SERVES, [process, body]
            ),
            Told.ORDER: lambda link, _, body: self._tell_others(link, Told.ORDER, body),
            Told.HOLD: lambda _, __, body: self._hold(body, holds=True),
            Told.RELEASE: lambda _, __, body: self._hold(body, holds=False),
        }

    def _all_answers(self) -> dict[str, Callable[[Link, int, Any], asyncio.Future[Any]]]:
        return {
            Asked.ENTER: lambda _, process, body: self._places[body[0]].enter(
                (process, body[1]), *body[2:]
            ),
            Asked.PERMIT: lambda _, process, body: self._permits.enter(
                (process, body[0]), *body[1:]
            ),
            Asked.WAIT: lambda _, __, body: asyncio.ensure_future(
                self._places[body[0]].expected_wait_s(*body[1:])
            ),
            Asked.LOCK: lambda _, process, body: self._locks.take((process, body[0]), body[1]),
            Asked.OTHERS: lambda link, _, body: asyncio.ensure_future(self._ask_others(link, body)),
            Asked.METRICS: lambda link, process, body: asyncio.ensure_future(
                self._collect_metrics(link, process, body)
            ),
            Asked.EXCHANGE: lambda _, process, body: answered(
                self._tables[body[0]].exchange(process, *body[1:])
            ),
            Asked.CLAIM: lambda _, process, body: answered(
                self._tables[body[0]].claim(process, *body[1:])
            ),
            Asked.DECIDE: lambda _, process, body: answered(
                self._tables[body[0]].decide(process, *body[1:])
            ),
            Asked.RESIGN: self._resign,
        }

    def _note_room(self, _: Link, process: int, body: Any) -> None:
        model, booked, num_prompts, num_tokens, is_asleep = body
        keys = [(process, place) for place in booked]
        self._places[model].note_room(Left(num_prompts, num_tokens), keys, is_asleep=is_asleep)

    def _resign(self, _: Link, process: int, body: Any) -> asyncio.Future[Any]:
        self._tables[body[0]].drop(process)
        return answered()

    def _hold(self, model: str, *, holds: bool) -> None:
        admission = self._places[model].admission
        if holds:
            admission.hold()
        else:
            admission.release()
        for link in self._processes:
            link.tell(Told.HELD, self._held())

    def _held(self) -> list[str]:
        return [model for model, each in self._places.items() if each.admission.is_held]

    def _tell_others(self, link: Link, name: Told, body: Any) -> None:
        for other in self._processes:
            if other is not link:
                other.tell(name, body)

    async def _ask_others(self, link: Link, body: Any) -> list[Any]:
        """Return the others' answers.

        Raises:
            BatonError: the error of one.
        """
        found = await self._answers_of_others(link, Asked.OTHERS, body)
        return list(found.values())

    async def _answers_of_others(self, link: Link, name: Asked, body: Any) -> dict[int, Any]:
        """Return answers by process, without those that hang or end meanwhile."""
        others = {other: self._processes[other] for other in self._ready if other is not link}
        answers = await asyncio.gather(
            *(other.ask(name, body, timeout_s=OTHERS_S) for other in others),
            return_exceptions=True,
        )
        found: dict[int, Any] = {}
        for (other, process), answer in zip(others.items(), answers, strict=True):
            if isinstance(answer, TimeoutError):
                log.warning("process_silent", process=process, message=name)
            elif isinstance(answer, BaseException):
                if not other.is_lost:
                    raise answer
            else:
                found[process] = answer
        return found

    async def _collect_metrics(self, link: Link, process: int, own: Any) -> Any:
        self._metrics.note(process, own)
        others = await self._answers_of_others(link, Asked.METRICS, None)
        for other, families in others.items():
            if other in self._processes.values():
                self._metrics.note(other, families)
        return self._metrics.parts()
