"""Settings of CORS: which sites' pages may read the router's answers in a browser."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.errors import ConfigError

_ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """vLLM's settings of the same names. The defaults differ: vLLM allows every site."""

    allowed_origins: tuple[str, ...] = setting(
        (),
        help='sites whose pages may use the HTTP API, such as ["https://chat.example"], or ["*"]; '
        "by default none",
    )
    allowed_methods: tuple[str, ...] = setting(
        (_ANY,), help="methods that pages of --allowed-origins may use"
    )
    allowed_headers: tuple[str, ...] = setting(
        (_ANY,), help="headers that pages of --allowed-origins may send"
    )
    allow_credentials: bool = setting(
        False, help="whether browsers may add their own credentials, such as client certificates"
    )

    def __post_init__(self) -> None:
        if self.allow_credentials and (not self.allowed_origins or _ANY in self.allowed_origins):
            raise ConfigError(
                "--allow-credentials needs --allowed-origins that names each site: with * every "
                "page could use its reader's certificate"
            )
