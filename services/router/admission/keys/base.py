"""Interface of stores of API keys."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from services.router.admission.caller import Caller
    from shared.rpc.watched_file import WatchedFile


class Refusal(StrEnum):
    """Reasons to let a request not in."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


class KeyStore(Protocol):
    """The valid keys."""

    @property
    def files(self) -> Sequence[WatchedFile[Any]]:
        """Files that may change while the router runs."""
        ...

    def find(self, key: bytes) -> Caller | Refusal:
        """Return the caller that the key belongs to, or why it is not valid.

        How long it takes says nothing about the valid keys.
        """
        ...

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the store."""
        ...
