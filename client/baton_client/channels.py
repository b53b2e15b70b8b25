"""Connections to the routers of a cluster: one is used until it fails, then the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from baton_client.addresses import is_loopback
from baton_client.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Detects a server that is lost during an answer, without pings to an idle one. Servers treat
    # more frequent pings as an attack (ours allow one every 5 seconds).
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class ChannelRing:
    """Opens a channel per address on first use and keeps it until `close`."""

    def __init__(
        self, addresses: Sequence[str], credentials: grpc.ChannelCredentials | None
    ) -> None:
        """Make a ring of at least one address, checked by `read_addresses`."""
        self._addresses = tuple(addresses)
        self._credentials = credentials
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._place = 0
        self._closed = False

    def current(self) -> tuple[int, grpc.aio.Channel]:
        """Return the present channel, and its index in the ring.

        Raises:
            UnavailableError: the ring is closed.
        """
        if self._closed:
            raise UnavailableError("the client is closed")
        if self._place not in self._channels:
            self._channels[self._place] = self._open(self._addresses[self._place])
        return self._place, self._channels[self._place]

    def leave(self, place: int) -> None:
        """Use the next channel after a failure on the channel at `place`.

        Many calls fail together; only the first of them changes the channel.
        """
        if place == self._place:
            self._place = (place + 1) % len(self._addresses)

    async def close(self) -> None:
        """Close every channel; running calls are cancelled. Safe to repeat."""
        self._closed = True
        for channel in self._channels.values():
            await channel.close()

    def _open(self, address: str) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = list(_OPTIONS)
        if is_loopback(address):
            # A proxy of the environment cannot reach this machine's own ports.
            options.append(("grpc.enable_http_proxy", 0))
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._credentials, options=options)
