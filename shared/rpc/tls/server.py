"""The server side of TLS: gRPC credentials and HTTP contexts that follow the files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from shared.rpc.tls.guard import PUBLIC, PeerGuard
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.renewal import renewed_context

if TYPE_CHECKING:
    from shared.rpc.tls.certificates import Certificates
    from shared.rpc.tls.files import CertificateFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of one gRPC server. Every port but a public one requires a certificate."""

    files: CertificateFiles
    role: PeerRole
    #: Whether the server's first port is for clients, which need no certificate there.
    public: bool = False

    def guard(self) -> PeerGuard:
        """Return the guard for calls."""
        cluster = self.files.identity(self.role).cluster
        return PeerGuard(cluster, public=PUBLIC if self.role is PeerRole.ROUTER else ())

    def credentials(self, *, first: bool) -> grpc.ServerCredentials:
        """Return credentials for the server's first port, or for another one."""
        return server_credentials(self.files, require_client=not (first and self.public))


def server_credentials(files: CertificateFiles, *, require_client: bool) -> grpc.ServerCredentials:
    """Return credentials that present the newest certificate to every new connection."""
    served = files.current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        newest = files.current()
        if newest is served:
            return None
        served = newest
        return _configuration(newest)

    # The types lack a documented value: None keeps the present certificate.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        fetch,  # type: ignore[arg-type]
        require_client,
    )


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pairs = [(certificates.key_pem, certificates.cert_pem)]
    return grpc.ssl_server_certificate_configuration(pairs, certificates.ca_pem)


def https_context(files: CertificateFiles, *, require_client: bool) -> ssl.SSLContext:
    """Return a server context that uses the newest certificate for each new connection."""
    return renewed_context(
        lambda: _https_context(files, require_client=require_client), files.current
    )


def _https_context(files: CertificateFiles, *, require_client: bool) -> ssl.SSLContext:
    settings = files.settings
    assert settings.tls_cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    if require_client:
        context.load_verify_locations(settings.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
