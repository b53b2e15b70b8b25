"""Which pages of other sites a browser lets read the router's answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from shared.config import setting
from shared.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

_ANY = "*"
#: Headers of answers that pages may read beside those that browsers always show.
_SHOWN_HEADERS = ("x-request-id", "x-baton-ignored", "retry-after", "retry-after-ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """vLLM's settings of the same names; vLLM lets in every site unless told."""

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


def add_cors(app: FastAPI, settings: CorsSettings | None) -> None:
    """Have `app` answer browsers' questions, if any site is let in."""
    if settings is None or not settings.allowed_origins:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=_SHOWN_HEADERS,
    )
