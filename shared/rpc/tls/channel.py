"""A channel whose calls use the certificate in the files at their beginning.

gRPC's own certificate providers are not available in Python, and a channel's credentials cannot be
changed. So there is a new inner channel whenever the files have changed; the calls of the previous
one continue, and it is closed after the last of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from shared.rpc.wrapped_channel import WrappedChannel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.rpc.tls.certificates import Certificates
    from shared.rpc.tls.files import CertificateFiles


def blocking_channel(
    address: str, files: CertificateFiles, options: Sequence[tuple[str, Any]]
) -> grpc.Channel:
    """Return a channel of gRPC's blocking API, with the certificate that is in the files now."""
    newest = files.current()
    return grpc.secure_channel(
        address, _credentials(newest), options=[*options, *_target_name(files)]
    )


def _credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        certificates.ca_pem, certificates.key_pem, certificates.cert_pem
    )


def _target_name(files: CertificateFiles) -> Sequence[tuple[str, Any]]:
    name = files.settings.tls_server_name
    return () if name is None else (("grpc.ssl_target_name_override", name),)


class _Live:
    """An inner channel, and its number of calls."""

    def __init__(self, channel: grpc.aio.Channel, certificates: Certificates) -> None:
        self.channel = channel
        self.certificates = certificates
        self._num_calls = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether it was retired and has no call left."""
        return self._closing is not None and self._closing.done()

    def began(self, call: Any) -> None:
        self._num_calls += 1
        call.add_done_callback(self._ended)

    def retire(self) -> None:
        """Begin no more calls here."""
        self._retired = True
        self._close_if_idle()

    def _ended(self, call: Any) -> None:
        self._num_calls -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._retired and self._num_calls == 0 and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.channel.close())


class _Method:
    """A stub's method: that of the channel that is live when it is called."""

    def __init__(self, owner: RenewedChannel, kind: str, args: Any, kwargs: Any) -> None:
        self._owner = owner
        self._kind = kind
        self._args = args
        self._kwargs = kwargs
        self._live: _Live | None = None
        self._call: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        live = self._owner.live()
        if live is not self._live:
            self._live = live
            self._call = getattr(live.channel, self._kind)(*self._args, **self._kwargs)
        call = self._call(*args, **kwargs)
        live.began(call)
        return call


class RenewedChannel(WrappedChannel):
    """A secure channel to one address."""

    def __init__(
        self, address: str, files: CertificateFiles, options: Sequence[tuple[str, Any]]
    ) -> None:
        self._address = address
        self._files = files
        self._options = [*options, *_target_name(files)]
        self._live: _Live | None = None
        self._retired: list[_Live] = []

    def live(self) -> _Live:
        """Return the channel for a call that begins now."""
        newest = self._files.current()
        if self._live is None or self._live.certificates is not newest:
            channel = grpc.aio.secure_channel(
                self._address, _credentials(newest), options=self._options
            )
            self._retire()
            self._live = _Live(channel, newest)
        return self._live

    def _retire(self) -> None:
        if self._live is not None:
            self._live.retire()
            self._retired = [one for one in (*self._retired, self._live) if not one.closed]

    async def close(self, grace: float | None = None) -> None:
        """Close it, and those of before whose calls have not ended."""
        lives = [*self._retired, *([] if self._live is None else [self._live])]
        await asyncio.gather(*(live.channel.close(grace) for live in lives))

    def _inner(self) -> grpc.aio.Channel:
        return self.live().channel

    def _method(self, kind: str, args: Any, kwargs: Any) -> Any:
        return _Method(self, kind, args, kwargs)
