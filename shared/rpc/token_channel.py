"""A channel whose calls carry the cluster's token.

grpc's own interceptors would add a task and a queue between every message of a stream and its
reader; here a call is changed once, at its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

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


class TokenChannel(grpc.aio.Channel):
    """Owns the channel that it wraps, which may be of any kind."""

    def __init__(self, inner: grpc.aio.Channel, token: ClusterToken) -> None:
        self._inner = inner
        self._token = token

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See grpc.aio.Channel."""
        return self._with_token(self._inner.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See grpc.aio.Channel."""
        return self._with_token(self._inner.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See grpc.aio.Channel."""
        return self._with_token(self._inner.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See grpc.aio.Channel."""
        return self._with_token(self._inner.stream_stream(*args, **kwargs))

    async def close(self, grace: float | None = None) -> None:
        """Close the wrapped channel."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See grpc.aio.Channel."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See grpc.aio.Channel."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See grpc.aio.Channel."""
        await self._inner.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _with_token(self, method: Any) -> Any:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            # Read for each call: the file may have changed.
            return method(*args, metadata=(*(metadata or ()), *self._token.metadata), **kwargs)

        return call
