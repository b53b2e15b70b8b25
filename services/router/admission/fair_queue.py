"""Waiting requests by tenant: the next one, those to drop, those ahead of a new one.

Tenants are served by start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing",
SIGCOMM 1996): service is charged to a tenant in units of its weight, and the tenant with the
smallest charge is next. The cost of a request is its tokens, which are known at its end only. So an
estimate is charged first and corrected then (as the counters of Sheng et al., "Fairness in Serving
Large Language Models", OSDI 2024). A full queue drops requests of the tenant that takes most of it
(McKenney, "Stochastic Fairness Queueing", INFOCOM 1990). This module knows no time, no tasks and no
workers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from services.router.admission.tenant import Tenant

T = TypeVar("T")

#: Number of tenants that are kept although they have no request here.
MAX_IDLE_FLOWS = 64


class QueueFullError(Exception):
    """The queue is full, and no tenant takes more of it than the new request's tenant would."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """A waiting request."""

    tenant: Tenant
    priority: int
    #: Order of arrival, for requests of equal priority.
    order: int
    #: Tokens that count against the queue's bound, and the expected cost of its service.
    num_tokens: int
    cost: float
    item: T

    @property
    def key(self) -> tuple[int, int]:
        """Sort key within its tenant's queue."""
        return self.priority, self.order


def _key(entry: Entry[T]) -> tuple[int, int]:
    return entry.key


@dataclass(slots=True, eq=False)
class _Flow(Generic[T]):
    """One tenant's requests and service."""

    weight: float
    #: Service of the tenant over its weight; at least the queue's clock while requests wait.
    tag: float = 0.0
    entries: list[Entry[T]] = field(default_factory=list)
    num_tokens: int = 0
    cost: float = 0.0
    #: Number of requests that were charged and are not settled.
    num_served: int = 0


class FairQueue(Generic[T]):
    """Queue of all tenants. Within a tenant, lower priorities go first, then earlier arrivals."""

    def __init__(self, *, max_requests: int, max_tokens: int) -> None:
        """Make an empty queue.

        A request of more than `max_tokens` may wait if no other request does.
        """
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._flows: dict[str, _Flow[T]] = {}
        self._waiting: dict[str, _Flow[T]] = {}
        self._order = itertools.count()
        #: The tag of the tenant that was served last, before its charge.
        self._clock = 0.0
        self._num_served = 0
        self.num_requests = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return self.num_requests

    def lengths(self) -> dict[str, int]:
        """Number of requests that wait, by the name of their tenant."""
        return {name: len(flow.entries) for name, flow in self._waiting.items()}

    def push(
        self, tenant: Tenant, item: T, *, num_tokens: int, cost: float, priority: int = 0
    ) -> tuple[Entry[T], list[Entry[T]]]:
        """Add a request; return its entry, and the entries that were dropped for it.

        The last requests of the tenants that take most, relative to their weights, are dropped.

        Raises:
            QueueFullError: this tenant itself takes most.
        """
        entry = Entry(tenant, priority, next(self._order), num_tokens, cost, item)
        victims = self._victims(entry)
        for victim in victims:
            self.remove(victim)
        flow = self._flow(tenant)
        if not flow.entries:
            self._waiting[tenant.name] = flow
            flow.tag = max(flow.tag, self._clock)
        insort(flow.entries, entry, key=_key)
        self._count(flow, entry, 1)
        return entry, victims

    def head(self) -> Entry[T] | None:
        """Return the next request; None if none waits."""
        if not self._waiting:
            return None
        return min(self._waiting.values(), key=lambda flow: flow.tag).entries[0]

    def pop(self) -> Entry[T]:
        """Remove the next request and charge its tenant; call `settle` at the request's end."""
        entry = self.head()
        if entry is None:
            raise IndexError("no request waits")
        self.remove(entry)
        self.charge(entry.tenant, entry.cost)
        return entry

    def remove(self, entry: Entry[T]) -> bool:
        """Remove a request from the queue; return whether it was waiting."""
        flow = self._waiting.get(entry.tenant.name)
        if flow is None:
            return False
        index = bisect_left(flow.entries, entry.key, key=_key)
        if index == len(flow.entries) or flow.entries[index] is not entry:
            return False
        del flow.entries[index]
        self._count(flow, entry, -1)
        if not flow.entries:
            del self._waiting[entry.tenant.name]
            flow.cost = 0.0
        return True

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Charge a tenant for a request in service, including a request that never waited here."""
        flow = self._flow(tenant)
        self._clock = flow.tag = max(flow.tag, self._clock)
        flow.tag += cost / flow.weight
        flow.num_served += 1
        self._num_served += 1

    def settle(self, tenant: Tenant, *, charged: float, cost: float) -> None:
        """Replace the cost that a request was `charged` by its actual `cost`."""
        flow = self._flow(tenant)
        flow.num_served -= 1
        flow.tag += (cost - charged) / flow.weight
        self._num_served -= 1
        if not self._num_served and not self._waiting:
            # No request waits or is in service: clear past charges.
            self._flows.clear()
            self._clock = 0.0

    def ahead(self, tenant: Tenant, *, priority: int = 0) -> tuple[int, float]:
        """Return how many requests would be served before a new one, and their total cost."""
        flow = self._flows.get(tenant.name)
        own: list[Entry[T]] = flow.entries if flow is not None else []
        before = bisect_left(own, (priority + 1, -1), key=_key)
        tag = max(self._clock, flow.tag) if flow is not None else self._clock
        cost = 0.0
        if flow is not None and before:
            cost = flow.cost if before == len(own) else sum(e.cost for e in own[:before])
            tag += cost / flow.weight
        num_requests = before
        for other in self._waiting.values():
            if other is not flow and other.tag < tag:
                share = min(1.0, (tag - other.tag) * other.weight / other.cost)
                num_requests += round(share * len(other.entries))
                cost += share * other.cost
        return num_requests, cost

    def _victims(self, newcomer: Entry[T]) -> list[Entry[T]]:
        """Return the requests to drop, without dropping them: `newcomer` may be refused instead."""
        num_requests = self.num_requests + 1
        num_tokens = self.num_tokens + newcomer.num_tokens
        if num_requests <= self._max_requests and num_tokens <= self._max_tokens:
            return []
        taken = {name: _Taken(flow) for name, flow in self._waiting.items()}
        own = taken.setdefault(newcomer.tenant.name, _Taken(_Flow(newcomer.tenant.weight)))
        own.add(newcomer)
        victims: list[Entry[T]] = []
        while num_requests > self._max_requests or (
            num_tokens > self._max_tokens and num_requests > 1
        ):
            too_many = num_requests > self._max_requests
            victim = max(taken.values(), key=_requests if too_many else _tokens).drop_last()
            if victim is newcomer:
                raise QueueFullError
            victims.append(victim)
            num_requests -= 1
            num_tokens -= victim.num_tokens
        return victims

    def _flow(self, tenant: Tenant) -> _Flow[T]:
        flow = self._flows.get(tenant.name)
        if flow is None:
            if len(self._flows) >= MAX_IDLE_FLOWS:
                self._forget_idle()
            flow = self._flows[tenant.name] = _Flow(tenant.weight)
        # The keys file may have changed the weight.
        flow.weight = tenant.weight
        return flow

    def _forget_idle(self) -> None:
        """Drop tenants without requests whose tag would be the clock in any case."""
        for name, flow in list(self._flows.items()):
            if not flow.entries and not flow.num_served and flow.tag <= self._clock:
                del self._flows[name]

    def _count(self, flow: _Flow[T], entry: Entry[T], sign: int) -> None:
        flow.num_tokens += sign * entry.num_tokens
        flow.cost += sign * entry.cost
        self.num_requests += sign
        self.num_tokens += sign * entry.num_tokens


class _Taken(Generic[T]):
    """One tenant's part of the queue, while requests to drop are chosen."""

    def __init__(self, flow: _Flow[T]) -> None:
        self._entries = list(flow.entries)
        self._weight = flow.weight
        self._num_tokens = flow.num_tokens

    @property
    def requests(self) -> float:
        """Number of requests divided by the weight."""
        return len(self._entries) / self._weight

    @property
    def tokens(self) -> float:
        """Number of tokens divided by the weight; -1 without requests: below empty prompts."""
        return self._num_tokens / self._weight if self._entries else -1.0

    def add(self, entry: Entry[T]) -> None:
        insort(self._entries, entry, key=_key)
        self._num_tokens += entry.num_tokens

    def drop_last(self) -> Entry[T]:
        entry = self._entries.pop()
        self._num_tokens -= entry.num_tokens
        return entry


def _requests(taken: _Taken[T]) -> float:
    return taken.requests


def _tokens(taken: _Taken[T]) -> float:
    return taken.tokens
