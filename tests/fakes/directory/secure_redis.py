"""A real redis-server that speaks TLS only, asks for a certificate, and has Baton's ACL."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import redis

import shared.directory.redis as package
from shared.rpc.tls.identity import PeerRole
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.security.certificates import issue

if TYPE_CHECKING:
    from cli.security.authority import Authority

ACL = Path(package.__file__).parent / "baton.acl"
PASSWORD = "a password with spaces, %41 and @"
ADMIN = ("admin", "admin's password")


class SecureRedis(RedisServer):
    """The user `baton` has what shared/directory/redis/baton.acl gives it; `admin` has all."""

    def __init__(self, folder: Path, ca: Authority) -> None:
        folder.mkdir(exist_ok=True)
        self.tls = issue(ca, folder / "certs", PeerRole.DECODE, stem="redis")
        rules = ACL.read_text()
        assert rules.rstrip().count("user baton ") == 1
        (folder / "users.acl").write_text(
            f"{rules.rstrip()} #{_sha256(PASSWORD)}\n"
            f"user {ADMIN[0]} on #{_sha256(ADMIN[1])} ~* &* +@all\n"
        )
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        super().__init__(folder, "--aclfile", str(folder / "users.acl"))
        self._argv += [
            "--tls-port", str(self.port), "--port", "0",
            "--tls-cert-file", str(self.tls.tls_cert), "--tls-key-file", str(self.tls.tls_key),
            "--tls-ca-cert-file", str(self.tls.tls_ca), "--tls-auth-clients", "yes",
        ]  # fmt: skip

    @property
    def url(self) -> str:
        """Where it is, for the user `baton`; the password is in `password_file`."""
        return f"rediss://baton@127.0.0.1:{self.port}/0?{self.files}"

    @property
    def files(self) -> str:
        """The part of a URL that names the CA and the certificate to show."""
        return (
            f"ssl_ca_certs={self.tls.tls_ca}&ssl_certfile={self.tls.tls_cert}"
            f"&ssl_keyfile={self.tls.tls_key}"
        )

    def client(self, user: str = ADMIN[0], password: str = ADMIN[1]) -> redis.Redis:
        """See `RedisServer.client`."""
        return redis.Redis(
            host="127.0.0.1", port=self.port, socket_timeout=10, username=user,
            password=password, ssl=True, ssl_ca_certs=str(self.tls.tls_ca),
            ssl_certfile=str(self.tls.tls_cert), ssl_keyfile=str(self.tls.tls_key),
        )  # fmt: skip


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
