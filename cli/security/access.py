"""The command's own access to a cluster: its TLS files, and the token that its processes share."""

from __future__ import annotations

import os
import secrets
import ssl
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from cli.errors import CommandError
from shared.rpc.auth import ClusterToken

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS: list[tuple[str, int | str]] = [("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True, slots=True)
class Secure:
    """The CA of the cluster, and the certificate for servers that require one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    #: The name in certificates of gRPC services, if it differs from the called address.
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return credentials for gRPC.

        Raises:
            CommandError: a file cannot be read.
        """
        try:
            ca, cert, key = (
                None if path is None else path.read_bytes()
                for path in (self.ca, self.cert, self.key)
            )
        except OSError as error:
            raise CommandError(f"TLS: {error}") from error
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """Return a context for HTTPS."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise CommandError(f"TLS: {error}") from error
        return context


def from_flags(
    cert: Path | None, key: Path | None, ca: Path | None, server_name: str | None = None
) -> Secure | None:
    """Return the TLS files of a command's flags: without a CA nothing is encrypted."""
    return None if ca is None else Secure(ca, cert, key, server_name)


@dataclass(frozen=True, slots=True)
class Access:
    """A command's access to a cluster: TLS files and the cluster's token."""

    secure: Secure | None = None
    #: Metadata of every call: the cluster's token, if it has one.
    metadata: tuple[tuple[str, str], ...] = ()


#: Access to a cluster without any checks.
NOTHING = Access()


def open_http(secure: Secure | None) -> urllib.request.OpenerDirector:
    """What opens URLs of this machine's services: the environment's proxy cannot reach them."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if secure is not None:
        handlers.append(urllib.request.HTTPSHandler(context=secure.context()))
    return urllib.request.build_opener(*handlers)


def open_unverified_http() -> urllib.request.OpenerDirector:
    """What opens URLs of a service that this command has started, whatever its certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )


def open_channel(address: str, secure: Secure | None) -> grpc.Channel:
    """Return a blocking channel to a service."""
    if secure is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    options = list(_OPTIONS)
    if secure.server_name is not None:
        options.append(("grpc.ssl_target_name_override", secure.server_name))
    return grpc.secure_channel(address, secure.credentials(), options=options)


def make_cluster_token(path: Path) -> None:
    """Write a new random token that only this user can read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def token_metadata(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of calls to the cluster's own services; empty without a token.

    Raises:
        ConfigError: the file cannot be used.
    """
    return () if path is None else ClusterToken(path).metadata
