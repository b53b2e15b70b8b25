"""An HTTP port's own certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.rpc.tls.https_settings import ClientCerts
from shared.rpc.tls.renewal import renewed_context

if TYPE_CHECKING:
    from pathlib import Path

    from shared.rpc.tls.https_settings import HttpsSettings

_VERIFY = {
    ClientCerts.NONE: ssl.CERT_NONE,
    ClientCerts.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCerts.REQUIRED: ssl.CERT_REQUIRED,
}


def open_https(settings: HttpsSettings) -> ssl.SSLContext | None:
    """Return a context that follows the files; None without a certificate.

    Raises:
        ConfigError: the files cannot be used.
    """
    if settings.https_cert is None:
        return None
    try:
        return renewed_context(lambda: _context(settings), lambda: _version(settings))
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(path) for path in _files(settings))
        raise ConfigError(f"--https-cert: {files} cannot be used: {error}") from error


def _context(settings: HttpsSettings) -> ssl.SSLContext:
    assert settings.https_cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.https_cert, settings.https_key)
    if settings.https_ca is not None:
        context.load_verify_locations(settings.https_ca)
    context.verify_mode = _VERIFY[settings.https_client_certs]
    return context


def _version(settings: HttpsSettings) -> object:
    """Return what changes with the files."""
    found = [path.stat() for path in _files(settings)]
    return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in found]


def _files(settings: HttpsSettings) -> list[Path]:
    files = (settings.https_cert, settings.https_key, settings.https_ca)
    return [path for path in files if path is not None]
