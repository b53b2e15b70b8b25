"""Access to gRPC services: a rule per service, checked before a message is read.

Rules use a call's metadata only. Where channels are encrypted, the handshake has checked the peer's
certificate before; a rule further limits what such a peer may call.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc_health.v1 import health

from shared.errors import AuthenticationError, ConfigError
from shared.rpc.interceptors import describe_error
from shared.rpc.watched_file import WatchedFile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    #: Name (lower case) and value of every metadata pair of a call.
    Metadata = Iterable[tuple[str, str | bytes]]

TOKEN_KEY = "baton-cluster-token"
#: 32 hexadecimal characters are 128 bits; `openssl rand -hex 32` makes twice that.
MIN_TOKEN_CHARS = 32
MAX_TOKEN_CHARS = 1024
_TOKEN = re.compile(rb"[!-~]+")


class Rule(Protocol):
    """A check of calls."""

    def __call__(self, metadata: Metadata) -> None:
        """Return if the call is allowed.

        Raises:
            AuthenticationError: it is not. The message is for the caller and contains no secret.
        """
        ...


def anybody(metadata: Metadata) -> None:
    """Allow every call: the rule of an open service."""


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls before their request is read. Health checks are open, as probes have no keys.

    A service without a rule of its own, the reflection service included, has the default rule: a
    service that is added later is closed until it gets a rule.
    """

    def __init__(self, rules: Mapping[str, Rule], *, default: Rule) -> None:
        """Set the rules, by full service name, e.g. `baton.v1.Router`."""
        self._rules = {health.SERVICE_NAME: anybody, **rules}
        self._default = default

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Check one call, whether or not its method exists."""
        details: Any = handler_call_details
        service = details.method.rpartition("/")[0].removeprefix("/")
        try:
            self._rules.get(service, self._default)(details.invocation_metadata or ())
        except AuthenticationError as error:
            return _refusal(error, details.method)
        return await continuation(handler_call_details)


def _refusal(error: AuthenticationError, method: str) -> Any:
    """Return a handler that answers at once for every kind of call: as a stream, it reads no
    message.
    """

    async def refuse(
        requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        await context.abort(*describe_error(error, method))

    return grpc.stream_stream_rpc_method_handler(refuse)


class ClusterToken:
    """The secret that routers and workers share: its holder may call workers and directories.

    Its file has one token per line. The first is sent, all are accepted, so it can be changed
    without a pause: add the new one below, then on every machine swap the lines, then remove the
    old one.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be used.
        """
        self.file = WatchedFile(path, _parse_tokens)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that is sent with every call."""
        return ((TOKEN_KEY, self.file.value[0].decode()),)

    def check(self, metadata: Metadata) -> None:
        """See Rule."""
        given = [value for name, value in metadata if name == TOKEN_KEY]
        if len(given) != 1:
            raise AuthenticationError(
                "this service is for processes of the cluster: the call has no cluster token"
            )
        value = given[0].encode() if isinstance(given[0], str) else given[0]
        # All are compared, so that the time does not show which one matches.
        if sum(hmac.compare_digest(value, token) for token in self.file.value) == 0:
            raise AuthenticationError("the cluster token is wrong")

    def sign(self, message: bytes) -> bytes:
        """Return an HMAC-SHA256 that holders of the token can check.

        Other uses begin differently.
        """
        return hmac.digest(self.file.value[0], message, "sha256")

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether `sign` of a holder of one of the tokens has made it."""
        return any(
            hmac.compare_digest(hmac.digest(token, message, "sha256"), signature)
            for token in self.file.value
        )


def _parse_tokens(content: bytes) -> tuple[bytes, ...]:
    tokens = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not tokens:
        raise ConfigError("there is no token in it")
    for number, token in enumerate(tokens, start=1):
        if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS:
            raise ConfigError(
                f"token {number} has {len(token)} characters, not {MIN_TOKEN_CHARS} to "
                f"{MAX_TOKEN_CHARS}; `openssl rand -hex 32` makes one"
            )
        if not _TOKEN.fullmatch(token):
            raise ConfigError(f"token {number} has characters that are not printable ASCII")
    return tokens
