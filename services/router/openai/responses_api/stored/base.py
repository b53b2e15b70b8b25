"""The store of responses, and the list of those that are being made, as interfaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

#: Statuses of a response that has not ended.
QUEUED, IN_PROGRESS = "queued", "in_progress"
#: Seconds for which an entry that was deleted before it had ended is not kept again.
GONE_S = 600.0
#: The tenant's name and the response's id.
ResponseKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Bounds of a store, for all tenants together."""

    max_entries: int
    max_bytes: int
    max_age_s: float
    #: Bytes of the events of one response.
    max_event_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response and the conversation that it answers."""

    response_id: str
    #: Name of the tenant that asked for it.
    tenant: str
    #: `status` of the response.
    status: str
    #: Whether it was asked for with `background`.
    background: bool
    #: JSON of the items before the answer, the earliest first, without instructions.
    items: bytes
    #: JSON of the response, as the client gets it.
    response: bytes

    @property
    def key(self) -> ResponseKey:
        """Its tenant and its id."""
        return self.tenant, self.response_id

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in (QUEUED, IN_PROGRESS)

    @property
    def num_bytes(self) -> int:
        """Size of the content."""
        return len(self.items) + len(self.response)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a streamed response."""

    #: `sequence_number`: the events of a response are numbered from 0 without gaps.
    number: int
    #: The event as the client gets it.
    data: bytes
    #: Whether the response has ended with it.
    is_last: bool = False


class ResponseStore(Protocol):
    """Keeps a bounded number of responses for a bounded time.

    An entry belongs to one tenant; with another tenant's name it is not found. Each entry is
    whole in itself: the removal of one leaves the conversations of all others complete.

    Every method raises UnavailableError while the store cannot be used; it is then unknown whether
    a change was made, and safe to make it again.
    """

    async def check(self) -> None:
        """Raise UnavailableError if the store cannot be used now."""

    async def put(self, entry: StoredResponse) -> bool:
        """Keep `entry`, in place of an earlier one of its tenant and id; its age begins again.

        An entry that has ended stays as it is, and one that was deleted before it had ended is not
        kept again. Removes other entries while the store is over a bound, the least recently used
        first. Return False if `entry` is not kept: it does not fit, or was deleted. When this
        returns True, `get` finds the entry.
        """

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return the entry and count it as used; None if there is none, or no longer."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Remove the entry and its events; return whether there was one.

        When this returns, `get` finds none.
        """

    async def add_events(
        self, tenant: str, response_id: str, events: Sequence[StoredEvent]
    ) -> None:
        """Keep events of an entry, which follow the earlier ones; events that it has are ignored.

        They count as the entry's content. Of too many bytes the earliest are removed. Does nothing
        without an entry.
        """

    async def events(
        self, tenant: str, response_id: str, *, after: int, wait_s: float = 0.0
    ) -> Sequence[StoredEvent]:
        """Return events with numbers over `after`, the earliest first; of many, some.

        Waits up to `wait_s` for one if there is none.
        """


class RunBoard(Protocol):
    """Which responses are being made in the background by the routers of a cluster.

    Raises UnavailableError as the store does.
    """

    async def renew(self, runs: Collection[ResponseKey]) -> Collection[ResponseKey]:
        """Say that this router makes `runs`, for some seconds; return those that it has to end."""

    async def remove(self, run: ResponseKey) -> None:
        """Say that this run has ended."""

    async def cancel(self, run: ResponseKey) -> bool:
        """Ask the router that makes it to end it; return whether there is one."""

    async def is_alive(self, run: ResponseKey) -> bool:
        """Return whether a router makes it.

        After an interruption of the board, routers have some seconds to say so again.
        """
