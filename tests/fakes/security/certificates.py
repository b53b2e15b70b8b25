"""Certificates of every kind, good and bad, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cli.security.authority import Authority
from shared.rpc.tls.files import CertificateFiles
from shared.rpc.tls.identity import Identity, PeerRole
from shared.rpc.tls.settings import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

DAY = timedelta(days=1)


def authority(name: str = "test CA", lifetime: timedelta = 30 * DAY) -> Authority:
    return Authority.make(name, lifetime=lifetime)


def issue(
    ca: Authority,
    folder: Path,
    role: PeerRole,
    *,
    stem: str | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
    cluster: str = "cluster",
    trusted: Authority | None = None,
    age: timedelta = DAY,
    lifetime: timedelta = 10 * DAY,
) -> TlsSettings:
    """Files of one holder; `trusted` is the CA that it takes the word of, if not its own."""
    stem = stem or role.value
    start = datetime.now(UTC) - age
    cert, key = ca.issue(
        Identity(cluster, role, stem),
        hosts=hosts,
        serves=role is not PeerRole.CLIENT and role is not PeerRole.OPERATOR,
        not_before=start,
        not_after=start + lifetime,
    )
    folder.mkdir(exist_ok=True)
    settings = TlsSettings(
        tls_cert=folder / f"{stem}.crt", tls_key=folder / f"{stem}.key", tls_ca=folder / "ca.crt"
    )
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    settings.tls_cert.write_bytes(cert)
    settings.tls_key.write_bytes(key)
    settings.tls_key.chmod(0o600)
    (trusted or ca).save(folder / "ca.crt", folder / "ca.key")
    return settings


def self_signed(folder: Path, role: PeerRole, trusted: Authority) -> TlsSettings:
    """One that says of itself what a CA should say; its peers' CA is the right one."""
    own = authority("myself")
    return issue(own, folder, role, trusted=trusted)


def followed(settings: TlsSettings) -> CertificateFiles:
    """Files that are looked at each time."""
    return CertificateFiles(settings, look_every_s=0.0)
