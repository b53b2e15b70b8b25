"""Certificates for every process of a cluster, and how the runner itself reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio

from cli.security.access import Secure
from cli.security.certs import make_certificates
from shared.rpc.tls.identity import PeerRole

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

#: The connector stays in the clear, so that a proxy still knows a piece when it sees one.
WORKER_FLAGS = ("--transfer-encryption", "off")


class Trust:
    """A CA of this cluster's own; without one (`hosts` is None) nothing is encrypted."""

    def __init__(self, folder: Path, hosts: Sequence[str] | None) -> None:
        """`hosts`: addresses that services are reached at."""
        self._certificates = (
            None if hosts is None else make_certificates(folder / "certs", hosts=hosts)
        )

    @property
    def scheme(self) -> str:
        """Of the routers' HTTP API."""
        return "http" if self._certificates is None else "https"

    @property
    def context(self) -> ssl.SSLContext | bool:
        """What an HTTP client takes as `verify`."""
        return True if self._certificates is None else self._secure.context()

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a gRPC client takes."""
        return None if self._certificates is None else self._secure.credentials()

    def environ(self, role: str) -> dict[str, str]:
        """What a service of this role is started with."""
        if self._certificates is None:
            return {}
        return self._certificates.environ(PeerRole(role))

    def flags(self, role: str) -> Sequence[str]:
        """The same for its command line."""
        return () if self._certificates is None or role == "router" else WORKER_FLAGS

    def channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """The runner's own way to a worker."""
        credentials = self.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    @property
    def _secure(self) -> Secure:
        assert self._certificates is not None
        found = self._certificates
        operator = PeerRole.OPERATOR
        return Secure(found.ca, found.cert(operator), found.key(operator))
