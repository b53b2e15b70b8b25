"""A process's certificate, key and CA: read from their files, and checked before use."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from shared.errors import ConfigError
from shared.rpc.tls.identity import Identity, identities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

    from shared.rpc.tls.settings import TlsSettings

log = structlog.get_logger(__name__)

_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Matching content of the three files at one moment."""

    cert_pem: bytes
    key_pem: bytes
    ca_pem: bytes
    not_after: datetime
    identities: tuple[Identity, ...]


def read_certificates(settings: TlsSettings) -> Certificates:
    """Read and check the three files, which must be set.

    Raises:
        ConfigError: one cannot be read, is not PEM, is not valid now, or does not belong to the
            others. The message names the flag and the file.
    """
    cert_path, key_path, ca_path = settings.tls_cert, settings.tls_key, settings.tls_ca
    if cert_path is None or key_path is None or ca_path is None:
        raise ConfigError("TLS is not configured: --tls-cert, --tls-key and --tls-ca are missing")
    cert_pem = _read("--tls-cert", cert_path)
    key_pem = _read("--tls-key", key_path)
    ca_pem = _read("--tls-ca", ca_path)
    chain = _parse("--tls-cert", cert_path, cert_pem)
    roots = _parse("--tls-ca", ca_path, ca_pem)
    leaf = chain[0]
    _require_valid(f"--tls-cert {cert_path}", leaf)
    _require_key(leaf, cert_path, key_pem, key_path)
    _require_chain(chain, roots, cert_path, ca_path)
    _warn_if_readable(key_path)
    return Certificates(
        cert_pem=cert_pem,
        key_pem=key_pem,
        ca_pem=ca_pem,
        not_after=leaf.not_valid_after_utc,
        identities=identities(_uris(leaf)),
    )


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error


def _parse(flag: str, path: Path, pem: bytes) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(f"{flag} {path} is no certificate in PEM: {error}") from error


def _require_valid(what: str, certificate: x509.Certificate) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if start <= now <= end:
        return
    trouble = "has expired" if now > end else "is not valid yet"
    raise ConfigError(
        f"{what} {trouble}: valid from {start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, "
        f"and it is {now:%Y-%m-%d %H:%M:%S}"
    )


def _require_key(leaf: x509.Certificate, cert_path: Path, key_pem: bytes, key_path: Path) -> None:
    try:
        key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        message = f"--tls-key {key_path} is no private key in PEM without a password: {error}"
        raise ConfigError(message) from error
    if _public_bytes(key.public_key()) != _public_bytes(leaf.public_key()):
        raise ConfigError(f"--tls-key {key_path} is not the key of --tls-cert {cert_path}")


def _public_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _require_chain(
    chain: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    cert_path: Path,
    ca_path: Path,
) -> None:
    """Check the chain. Peers check it themselves; this reports an error at start."""
    current = chain[0]
    for _ in range(_LONGEST_CHAIN):
        root = _issuer(current, roots)
        if root is not None:
            _require_valid(f"the CA in --tls-ca {ca_path}", root)
            return
        above = _issuer(current, chain[1:])
        if above is None:
            break
        current = above
    raise ConfigError(f"--tls-cert {cert_path} was not issued by the CA in --tls-ca {ca_path}")


def _issuer(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate]
) -> x509.Certificate | None:
    for candidate in candidates:
        try:
            certificate.verify_directly_issued_by(candidate)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return candidate
    return None


def _uris(leaf: x509.Certificate) -> Sequence[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _warn_if_readable(key_path: Path) -> None:
    mode = stat.S_IMODE(key_path.stat().st_mode)
    if mode & 0o077:
        log.warning("tls_key_readable_by_others", path=str(key_path), mode=f"{mode:04o}")
