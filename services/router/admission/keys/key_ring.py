"""Authentication: find a request's tenant by the API key in its headers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.router.admission.keys.base import Refusal
from shared.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from services.router.admission.caller import Caller
    from services.router.admission.keys.base import KeyStore
    from shared.rpc.auth import Metadata
    from shared.rpc.watched_file import WatchedFile

AUTHORIZATION = b"authorization"
#: The header of Anthropic's clients.
API_KEY = b"x-api-key"

_MESSAGES = {
    Refusal.MISSING: "no API key: send one as `Authorization: Bearer …` or `x-api-key: …`",
    Refusal.MALFORMED: "the API key cannot be read: send one, as `Authorization: Bearer …`",
    Refusal.UNKNOWN: "the API key is not valid",
    Refusal.EXPIRED: "the API key has expired",
}


class KeyRing(Collector):
    """Lets in requests with a key of the store; also collects metrics of refusals."""

    def __init__(self, store: KeyStore) -> None:
        """Use the keys of `store`."""
        self._store = store
        self._refused = Counter({reason.value: 0 for reason in Refusal})

    @property
    def files(self) -> Sequence[WatchedFile[Any]]:
        """Files of keys that may change while the router runs."""
        return self._store.files

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return the caller that the headers' key belongs to; header names are in lower case.

        Raises:
            AuthenticationError: no valid key. The message never contains the key that was sent.
        """
        key = _key_in(headers)
        found = self._store.find(key) if isinstance(key, bytes) else key
        if isinstance(found, Refusal):
            self._refused[found.value] += 1
            raise AuthenticationError(_MESSAGES[found])
        return found

    def caller_of_call(self, metadata: Metadata) -> Caller:
        """Return the caller for the metadata of a gRPC call; otherwise as `caller`."""
        pairs = ((_bytes(name), _bytes(value)) for name, value in metadata)
        return self.caller(pairs)

    def check(self, metadata: Metadata) -> None:
        """See Rule in shared/rpc/auth.py."""
        self.caller_of_call(metadata)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: refusals, and those of the store."""
        refused = CounterMetricFamily(
            "baton_auth_refused", "Requests refused by authentication, by reason", labels=["reason"]
        )
        for reason, count in self._refused.items():
            refused.add_metric([reason], count)
        yield refused
        yield from self._store.collect()


def _key_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes | Refusal:
    """Return the key in the headers, or why there is none."""
    given: set[bytes] = set()
    for name, value in headers:
        if name == AUTHORIZATION:
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != b"bearer":
                return Refusal.MALFORMED
        elif name != API_KEY:
            continue
        given.add(value.strip())
    if not given - {b""}:
        return Refusal.MISSING
    # Two different keys are refused: a proxy may have checked the other one.
    return given.pop() if len(given) == 1 else Refusal.MALFORMED


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value
