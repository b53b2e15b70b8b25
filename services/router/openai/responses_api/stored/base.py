"""The store of responses, as an interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    def num_bytes(self) -> int:
        """Size of the content."""
        return len(self.items) + len(self.response)


class ResponseStore(Protocol):
    """Keeps a bounded number of responses for a bounded time.

    An entry belongs to one tenant; with another tenant's name it is not found. Each entry is
    whole in itself: the removal of one leaves the conversations of all others complete.
    """

    async def put(self, entry: StoredResponse) -> bool:
        """Keep `entry`, in place of an earlier one of its tenant and id; its age begins again.

        Removes other entries while the store is over a bound, the least recently used first.
        Return False if `entry` itself does not fit; then nothing is kept under its id. When this
        returns, `get` finds the entry.
        """

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return the entry and count it as used; None if there is none, or no longer."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Remove the entry; return whether there was one. When this returns, `get` finds none."""
