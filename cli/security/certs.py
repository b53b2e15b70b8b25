"""`baton certs`: a development CA and a certificate for each role of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cli.errors import CommandError
from cli.places import log_folder
from cli.security.authority import Authority, write_private
from shared.address import bare_host, is_every_host
from shared.rpc.tls.identity import Identity, PeerRole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CA_DAYS = 3650
DEFAULT_DAYS = 90
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Name in the certificate of every service, for `--tls-server-name`.
SERVICE_NAME = "service.baton.internal"
_SERVING = (PeerRole.ROUTER, PeerRole.PREFILL, PeerRole.DECODE)


@dataclass(frozen=True, slots=True)
class CertificateFolder:
    """The paths of each role's files."""

    path: Path

    @property
    def ca(self) -> Path:
        """File of the CA's certificate, which every process and client needs."""
        return self.path / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """File of the CA's key, which no service needs."""
        return self.path / "ca.key"

    def cert(self, role: PeerRole) -> Path:
        """Return the path of a role's certificate."""
        return self.path / f"{role}.crt"

    def key(self, role: PeerRole) -> Path:
        """Return the path of a role's key."""
        return self.path / f"{role}.key"

    @property
    def redis(self) -> tuple[Path, Path]:
        """Certificate and key of a Redis at the same hosts."""
        return self.path / "redis.crt", self.path / "redis.key"

    def environ(self, role: PeerRole) -> dict[str, str]:
        """Return the environment for a service of this role."""
        return {
            "BATON_TLS_CERT": str(self.cert(role)),
            "BATON_TLS_KEY": str(self.key(role)),
            "BATON_TLS_CA": str(self.ca),
        }


def make_certificates(
    path: Path, *, days: int = DEFAULT_DAYS, hosts: Sequence[str] = (), cluster: str = "cluster"
) -> CertificateFolder:
    """Make the CA if there is none, and new certificates for every role and for a Redis.

    Running services reload the new ones automatically.

    Raises:
        CommandError: the folder cannot be written, or has a CA that cannot be used.
    """
    folder = CertificateFolder(path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(folder)
        not_after = datetime.now(UTC) + timedelta(days=days)
        for role in PeerRole:
            serves = role in _SERVING
            names = (*LOOPBACK, SERVICE_NAME, *hosts) if serves else ()
            pair = authority.issue(
                Identity(cluster, role, role.value),
                hosts=dict.fromkeys(names),
                serves=serves,
                not_after=not_after,
            )
            _write(folder.cert(role), folder.key(role), pair)
        names = (*LOOPBACK, *hosts)
        _write(
            *folder.redis,
            authority.issue("redis", hosts=dict.fromkeys(names), serves=True, not_after=not_after),
        )
    except OSError as error:
        raise CommandError(f"cannot write certificates to {path}: {error}") from error
    return folder


def _write(certificate: Path, key: Path, pair: tuple[bytes, bytes]) -> None:
    write_private(key, pair[1])
    write_private(certificate, pair[0])
    certificate.chmod(0o644)


def _authority(folder: CertificateFolder) -> Authority:
    if folder.ca.exists() or folder.ca_key.exists():
        authority = Authority.load(folder.ca, folder.ca_key)
        if authority.certificate.not_valid_after_utc < datetime.now(UTC):
            raise CommandError(
                f"the CA {folder.ca} has expired",
                advice=f"remove it and {folder.ca_key.name} to begin anew",
            )
        return authority
    authority = Authority.make("Baton development CA", lifetime=timedelta(days=CA_DAYS))
    authority.save(folder.ca, folder.ca_key)
    return authority


def local_certificates(path: Path | None, host: str) -> CertificateFolder:
    """Return a folder's certificates, or new ones for a cluster that listens on `host` here."""
    if path is not None:
        return CertificateFolder(path.absolute())
    hosts = () if is_every_host(host) else (bare_host(host),)
    return make_certificates(log_folder() / "certs", hosts=hosts)


def run_certs(path: Path, *, days: int, hosts: Sequence[str], cluster: str) -> None:
    """Make the certificates, and print where each belongs."""
    folder = make_certificates(path.absolute(), days=days, hosts=hosts, cluster=cluster)
    print(f"The CA is {folder.ca}. Keep {folder.ca_key.name} to yourself: no service needs it.")
    print(f"Certificates, good for {days} days; running services take up new ones by themselves:")
    for role in _SERVING:
        print(
            f"  baton serve {role:8} --tls-cert {folder.cert(role)} --tls-key {folder.key(role)} "
            f"--tls-ca {folder.ca}"
        )
    print("  (the router also needs --own-grpc-port, at which the workers' --directory points)")
    print(f"  redis-server --tls-cert-file {folder.redis[0]} --tls-key-file {folder.redis[1]}")
    print(f"A client that must show a certificate: {folder.cert(PeerRole.CLIENT)} and .key; others")
    print(f"need the CA alone: curl --cacert {folder.ca} https://localhost:8000/v1/models")
