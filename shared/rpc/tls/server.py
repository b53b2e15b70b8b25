"""The server side of TLS: gRPC credentials and HTTP contexts that follow the files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog

from shared.rpc.tls.guard import PUBLIC, PeerGuard
from shared.rpc.tls.identity import PeerRole

if TYPE_CHECKING:
    from shared.rpc.tls.certificates import Certificates
    from shared.rpc.tls.files import CertificateFiles

log = structlog.get_logger(__name__)


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
    served = files.current()
    context = latest = _https_context(files, require_client=require_client)

    def renew(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        nonlocal served, latest
        newest = files.current()
        if newest is not served:
            try:
                latest = _https_context(files, require_client=require_client)
                served = newest
            except (OSError, ssl.SSLError) as error:
                # The files have changed again since the check.
                log.warning("tls_certificate_not_usable", error=str(error))
        if latest is not context:
            connection.context = latest

    # Called for each connection, also without a server name.
    context.sni_callback = renew
    return context


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
