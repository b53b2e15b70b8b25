"""CORS: which sites' pages may read the router's answers in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

if TYPE_CHECKING:
    from fastapi import FastAPI

    from services.router.settings.cors import CorsSettings

#: Response headers that pages may read beside those that browsers always show.
_SHOWN_HEADERS = (
    "x-request-id",
    "x-baton-ignored",
    "x-baton-fields",
    "retry-after",
    "retry-after-ms",
)


def add_cors(app: FastAPI, settings: CorsSettings | None) -> None:
    """Add CORS to `app` if any site is allowed."""
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
