"""A certificate authority for development: one CA, and certificates with identities."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cli.errors import CommandError
from shared.rpc.tls.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Clocks of other machines may be behind ours.
_SKEW = timedelta(minutes=5)


class Authority:
    """A CA with its key. Its certificates are not valid for longer than its own."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str, *, lifetime: timedelta) -> Authority:
        """Return a new CA for certificates of services and clients; it may issue no other CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(_name(name), _name(name), key, now - _SKEW, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Authority:
        """Load a saved CA.

        Raises:
            CommandError: the files cannot be used.
        """
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            secret = load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise CommandError(
                f"{certificate} and {key} are no CA: {error}",
                advice="remove both to begin anew: every certificate is then made again",
            ) from error
        if not isinstance(secret, ec.EllipticCurvePrivateKey):
            raise CommandError(f"{key} was not made by this command")
        return cls(found, secret)

    def save(self, certificate: Path, key: Path) -> None:
        """Write both files; only this user may read the key."""
        write_private(key, _key_pem(self._key))
        certificate.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        holder: Identity | str,
        *,
        hosts: Iterable[str],
        serves: bool,
        not_after: datetime,
        not_before: datetime | None = None,
    ) -> tuple[bytes, bytes]:
        """Return a certificate and its key, as PEM.

        `hosts` are the holder's names and addresses. Without `serves` the certificate is for calls
        only: no client accepts its holder as a service. A holder that is only a name has no
        identity: services call it by `hosts`, and refuse its calls.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_host(host) for host in hosts]
        if isinstance(holder, Identity):
            names.insert(0, x509.UniformResourceIdentifier(holder.uri))
            subject = _name(f"{holder.role} {holder.name}")
        else:
            subject = _name(holder)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if serves:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        start = not_before or datetime.now(UTC) - _SKEW
        end = min(not_after, self.certificate.not_valid_after_utc)
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self.certificate.subject, key, start, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(above, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), _key_pem(key)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once by one that only this user may read."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    beside.replace(path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
