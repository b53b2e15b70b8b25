"""Settings of a process's certificate, and of the authority that it trusts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 read at run time by the settings loader

from shared.config import flag_name, setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """All three files, or none: then nothing is encrypted. They are read again when they change."""

    tls_cert: Path | None = setting(
        None,
        help="PEM file with this process's certificate and any intermediate ones; with --tls-key "
        "and --tls-ca all of its servers and calls are encrypted",
    )
    tls_key: Path | None = setting(None, help="PEM file with the key of --tls-cert")
    tls_ca: Path | None = setting(
        None, help="PEM file with the CA of the cluster; with both during a change of the CA"
    )
    tls_server_name: str | None = setting(
        None,
        help="a name in the certificate of every service, checked instead of the address: for "
        "services whose addresses cannot be in certificates",
    )

    @property
    def is_on(self) -> bool:
        """Whether peers must show certificates."""
        return self.tls_cert is not None

    def __post_init__(self) -> None:
        files = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "tls_ca")}
        missing = [flag_name(name) for name, path in files.items() if path is None]
        if missing and len(missing) < len(files):
            raise ConfigError(f"TLS needs a certificate, its key and a CA: give {missing[0]}, too")
        if self.tls_server_name is not None and missing:
            raise ConfigError("--tls-server-name needs --tls-cert, --tls-key and --tls-ca")
