"""Authentication: find a request's tenant by the API key in its headers."""

from __future__ import annotations

import hmac
import time
from collections import Counter
from typing import TYPE_CHECKING

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.admission.api_key import digest, key_id_of
from services.router.admission.keys_file import parse_keys
from shared.errors import AuthenticationError
from shared.rpc.watched_file import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from prometheus_client import Metric

    from services.router.admission.caller import Caller
    from shared.rpc.auth import Metadata

log = structlog.get_logger(__name__)

AUTHORIZATION = b"authorization"
#: The header of Anthropic's clients.
API_KEY = b"x-api-key"
#: Compared if the key's id is unknown, so that unknown keys take as long as known ones.
_NO_DIGEST = bytes(32)

_REASONS = {
    "missing": "no API key: send one as `Authorization: Bearer …` or `x-api-key: …`",
    "malformed": "the API key cannot be read: send one, as `Authorization: Bearer …`",
    "unknown": "the API key is not valid",
    "expired": "the API key has expired",
}


class KeyRing(Collector):
    """The valid keys, from a file that may change; also collects metrics of refusals."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """Read the keys file. `now` returns Unix time.

        Raises:
            ConfigError: the file cannot be used.
        """
        self.file = WatchedFile(path, parse_keys)
        self._now = now
        self._refused = Counter(dict.fromkeys(_REASONS, 0))

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return the caller that the headers' key belongs to; header names are in lower case.

        Raises:
            AuthenticationError: no valid key. The message never contains the key that was sent.
        """
        reason, caller = self._find(headers)
        if caller is None:
            self._refused[reason] += 1
            raise AuthenticationError(_REASONS[reason])
        return caller

    def caller_of_call(self, metadata: Metadata) -> Caller:
        """Return the caller for the metadata of a gRPC call; otherwise as `caller`."""
        pairs = ((_bytes(name), _bytes(value)) for name, value in metadata)
        return self.caller(pairs)

    def check(self, metadata: Metadata) -> None:
        """See Rule in shared/rpc/auth.py."""
        self.caller_of_call(metadata)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: number of keys, refusals, and whether the file on disk is in use."""
        refused = CounterMetricFamily(
            "baton_auth_refused", "Requests refused by authentication, by reason", labels=["reason"]
        )
        for reason, count in self._refused.items():
            refused.add_metric([reason], count)
        yield refused
        yield GaugeMetricFamily("baton_api_keys", "Valid API keys", value=len(self.file.value))
        yield GaugeMetricFamily(
            "baton_api_keys_broken",
            "1 while the keys file cannot be used and the last valid keys are in use",
            value=float(self.file.problem is not None),
        )

    def _find(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, Caller | None]:
        """Return an empty reason and the caller, or the reason of a refusal and None."""
        given: set[bytes] = set()
        for name, value in headers:
            if name == AUTHORIZATION:
                scheme, _, value = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return "malformed", None
            elif name != API_KEY:
                continue
            given.add(value.strip())
        if not given - {b""}:
            return "missing", None
        # Two different keys are refused: a proxy may have checked the other one.
        key_id = key_id_of(key := given.pop()) if len(given) == 1 else None
        if key_id is None:
            return "malformed", None
        stored = self.file.value.get(key_id)
        matches = hmac.compare_digest(digest(key), stored.digest if stored else _NO_DIGEST)
        if stored is None or not matches:
            return "unknown", None
        if stored.expires_s is not None and self._now() >= stored.expires_s:
            log.info("key_expired", key_id=key_id, tenant=stored.caller.tenant.name)
            return "expired", None
        return "", stored.caller


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value
