"""API keys in a file of tenants, which may change."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client.core import GaugeMetricFamily

from services.router.admission.keys.api_key import digest, key_id_of
from services.router.admission.keys.base import Refusal
from services.router.admission.keys.keys_file import parse_keys
from shared.rpc.watched_file import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from prometheus_client import Metric

    from services.router.admission.caller import Caller

log = structlog.get_logger(__name__)

#: Compared if the key's id is unknown, so that unknown keys take as long as known ones.
_NO_DIGEST = bytes(32)


class FileKeys:
    """See KeyStore."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """Read the keys file. `now` returns Unix time.

        Raises:
            ConfigError: the file cannot be used.
        """
        self.file = WatchedFile(path, parse_keys)
        self._now = now

    @property
    def files(self) -> Sequence[WatchedFile[Any]]:
        """See KeyStore."""
        return (self.file,)

    def find(self, key: bytes) -> Caller | Refusal:
        """See KeyStore."""
        key_id = key_id_of(key)
        if key_id is None:
            return Refusal.MALFORMED
        stored = self.file.value.get(key_id)
        matches = hmac.compare_digest(digest(key), stored.digest if stored else _NO_DIGEST)
        if stored is None or not matches:
            return Refusal.UNKNOWN
        if stored.expires_s is not None and self._now() >= stored.expires_s:
            log.info("key_expired", key_id=key_id, tenant=stored.caller.tenant.name)
            return Refusal.EXPIRED
        return stored.caller

    def collect(self) -> Iterator[Metric]:
        """Yield the number of keys, and whether the file on disk is in use."""
        yield GaugeMetricFamily("baton_api_keys", "Valid API keys", value=len(self.file.value))
        yield GaugeMetricFamily(
            "baton_api_keys_broken",
            "1 while the keys file cannot be used and the last valid keys are in use",
            value=float(self.file.problem is not None),
        )
