"""Channels to other processes of the cluster, one per address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from shared.rpc.server import MAX_MESSAGE_BYTES
from shared.rpc.tls.channel import RenewedChannel, blocking_channel
from shared.rpc.token_channel import TokenChannel, with_token

if TYPE_CHECKING:
    from shared.rpc.auth import ClusterToken
    from shared.rpc.tls.files import CertificateFiles

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Calls to a dead or disconnected peer end within 10 seconds: the RPC is the lease.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 4_000),
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

    def __init__(
        self, *, token: ClusterToken | None = None, certificates: CertificateFiles | None = None
    ) -> None:
        """Make a pool. `token` is sent with every call. With `certificates` both sides show theirs.

        Without certificates nothing is encrypted.
        """
        self._token = token
        self._certificates = certificates
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """Return the channel to `address`; it connects on its first call."""
        if address not in self._channels:
            channel = self._open(address)
            if self._token is not None:
                channel = TokenChannel(channel, self._token)
            self._channels[address] = channel
        return self._channels[address]

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._certificates is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return RenewedChannel(address, self._certificates, _OPTIONS)

    def blocking(self, address: str) -> grpc.Channel:
        """Return a new channel for a thread without an event loop; the caller closes it.

        It keeps the certificate that it begins with.
        """
        if self._certificates is None:
            channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            channel = blocking_channel(address, self._certificates, _OPTIONS)
        return channel if self._token is None else with_token(channel, self._token)

    async def drop(self, address: str) -> None:
        """Close the channel to an address that is no longer served."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close every channel; running calls are cancelled."""
        for address in list(self._channels):
            await self.drop(address)
