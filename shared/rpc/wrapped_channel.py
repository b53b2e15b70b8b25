"""A channel that stands in front of another one and has its say where calls begin."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import grpc


class WrappedChannel(grpc.aio.Channel):
    """What stubs call. Everything but the beginning of calls, and `close`, is the inner channel's.

    grpc's own interceptors put a task and a queue between every message of a stream and its reader;
    here a call is touched once, when it begins.
    """

    @abstractmethod
    def _inner(self) -> grpc.aio.Channel:
        """The channel behind this one."""

    @abstractmethod
    def _method(self, kind: str, args: Any, kwargs: Any) -> Any:
        """What a stub keeps of a method; `kind` is the name of what makes it."""

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See `grpc.aio.Channel`, like the rest."""
        return self._method("unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._method("unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._method("stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._method("stream_stream", args, kwargs)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner().channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
