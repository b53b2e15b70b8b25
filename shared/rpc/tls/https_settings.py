"""Settings of a certificate for the HTTP port alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path  # noqa: TC003 read at run time by the settings loader

from shared.config import setting
from shared.errors import ConfigError


class ClientCerts(StrEnum):
    """What clients of the HTTP port show."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsSettings:
    """vLLM's --ssl-… settings. `TlsSettings` are of all ports, with certificates of the cluster."""

    https_cert: Path | None = setting(
        None,
        help="PEM file with a certificate for the HTTP port alone, by any CA, and any intermediate "
        "ones; read again when it changes",
    )
    https_key: Path | None = setting(
        None, help="PEM file with the key of --https-cert; by default in the same file"
    )
    https_ca: Path | None = setting(
        None, help="PEM file with the CA of certificates that clients of the HTTP port show"
    )
    https_client_certs: ClientCerts = setting(
        ClientCerts.NONE,
        help="whether clients of the HTTP port show certificates: none, optional or required",
    )

    def __post_init__(self) -> None:
        if self.https_cert is None and (self.https_key is not None or self.asks_clients):
            raise ConfigError("--https-key and --https-client-certs need --https-cert")
        if self.asks_clients and self.https_ca is None:
            raise ConfigError("--https-client-certs needs --https-ca")

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked for certificates."""
        return self.https_client_certs is not ClientCerts.NONE
