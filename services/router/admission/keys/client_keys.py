"""API keys that the settings give: they name no tenant."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily

from services.router.admission.caller import ANYBODY
from services.router.admission.keys.api_key import digest
from services.router.admission.keys.base import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from services.router.admission.caller import Caller
    from shared.rpc.watched_file import WatchedFile


class ClientKeys:
    """See KeyStore. Each key lets a client in, and no operator."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Keep the hashes of the keys."""
        self._digests = [digest(key.encode()) for key in keys]

    @property
    def files(self) -> Sequence[WatchedFile[Any]]:
        """See KeyStore."""
        return ()

    def find(self, key: bytes) -> Caller | Refusal:
        """See KeyStore."""
        shown = digest(key)
        # All are compared, so that the time does not tell which one it is.
        matches = [hmac.compare_digest(shown, each) for each in self._digests]
        return ANYBODY if any(matches) else Refusal.UNKNOWN

    def collect(self) -> Iterator[Metric]:
        """Yield the number of keys."""
        yield GaugeMetricFamily("baton_api_keys", "Valid API keys", value=len(self._digests))
