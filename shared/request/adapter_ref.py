"""What a request carries of the adapter that it asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """One version of an adapter."""

    #: What clients ask for.
    name: str
    #: Of its content: see `Adapter.digest`. Names are used again, digests are not.
    digest: bytes
    #: Its folder, for workers that do not have it yet.
    path: str
