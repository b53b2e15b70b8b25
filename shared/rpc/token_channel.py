"""A channel whose calls carry the cluster's token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from shared.rpc.wrapped_channel import WrappedChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.rpc.auth import ClusterToken


class _TokenInterceptor(grpc.UnaryUnaryClientInterceptor):
    """Adds the token to a blocking call."""

    def __init__(self, token: ClusterToken) -> None:
        self._token = token

    def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request: Any,
    ) -> Any:
        """See grpc.UnaryUnaryClientInterceptor."""
        details: Any = client_call_details
        metadata = (*(details.metadata or ()), *self._token.metadata)
        return continuation(details._replace(metadata=metadata), request)


def with_token(channel: grpc.Channel, token: ClusterToken) -> grpc.Channel:
    """Return the channel for blocking unary calls that carry the token."""
    return grpc.intercept_channel(channel, _TokenInterceptor(token))


class TokenChannel(WrappedChannel):
    """Owns the channel that it wraps, of whatever kind that is."""

    def __init__(self, inner: grpc.aio.Channel, token: ClusterToken) -> None:
        self._channel = inner
        self._token = token

    async def close(self, grace: float | None = None) -> None:
        """Close it."""
        await self._channel.close(grace)

    def _inner(self) -> grpc.aio.Channel:
        return self._channel

    def _method(self, kind: str, args: Any, kwargs: Any) -> Any:
        method = getattr(self._channel, kind)(*args, **kwargs)

        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            # Read for each call: the file may have changed.
            return method(*args, metadata=(*(metadata or ()), *self._token.metadata), **kwargs)

        return call
