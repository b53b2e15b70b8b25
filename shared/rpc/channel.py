"""Channels to other processes of the cluster, one per address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from shared.rpc.server import MAX_MESSAGE_BYTES
from shared.rpc.tls.channel import RenewedChannel

if TYPE_CHECKING:
    from shared.rpc.tls.files import CertificateFiles

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A dead or cut-off peer ends its calls within 20 seconds: the RPC is the lease.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # A worker that restarts on the same port is reached again quickly.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The cluster's own traffic never goes through a proxy of the environment.
    ("grpc.enable_http_proxy", 0),
]


class ChannelPool:
    """Opens a channel per address on first use and keeps it until `drop` or `close`."""

    def __init__(self, certificates: CertificateFiles | None = None) -> None:
        """With `certificates` both sides show theirs; without, nothing is encrypted."""
        self._certificates = certificates
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `address`; connects on its first call."""
        if address not in self._channels:
            self._channels[address] = self._open(address)
        return self._channels[address]

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._certificates is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return RenewedChannel(address, self._certificates, _OPTIONS)

    async def drop(self, address: str) -> None:
        """Close the channel to an address that nobody serves any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close every channel; running calls are cancelled."""
        for address in list(self._channels):
            await self.drop(address)
