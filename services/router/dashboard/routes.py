"""The page and its data over HTTP. The files are open; the data is for operators (auth.py)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from services.router.dashboard.assets import PAGE_PATH, SECURITY_HEADERS, read_assets
from services.router.dashboard.feed import Feed
from services.router.openai.auth import DASHBOARD_EVENTS_PATH, DASHBOARD_REQUEST_PATH
from services.router.openai.http.disconnect import unless_disconnected
from shared.errors import RequestCancelledError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from services.router.dashboard.state import DashboardState

logger = structlog.get_logger(__name__)

_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Dashboard:
    """The page's routes and the feed behind them."""

    def __init__(self, state: DashboardState, feed: Feed | None = None) -> None:
        self.feed = feed or Feed(state)
        self.state = state
        self._assets = read_assets()

    @property
    def open_paths(self) -> frozenset[str]:
        """The paths that need no key: files that are the same for every cluster."""
        return frozenset({f"{PAGE_PATH}/", *(asset.path for asset in self._assets)})

    def add_to(self, app: FastAPI) -> None:
        """Add the page's routes to `app`. They are not part of the documented API."""
        for asset in self._assets:
            app.add_route(asset.path, asset.serve, include_in_schema=False)
        app.add_route(f"{PAGE_PATH}/", _without_slash, include_in_schema=False)
        app.add_route(DASHBOARD_EVENTS_PATH, self._events, include_in_schema=False)
        app.add_route(DASHBOARD_REQUEST_PATH, self._request, include_in_schema=False)

    async def _events(self, request: Request) -> Response:
        if self.feed.is_full:
            raise HTTPException(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open; try again later"
            )
        return _FeedResponse(self.feed)

    async def _request(self, request: Request) -> Response:
        """Return one request.

        Its number is a query parameter, so that the path is fixed for the key check.
        """
        try:
            number = int(request.query_params.get("number", ""))
        except ValueError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "`number` must be a number") from error
        detail = await self.state.find(number)
        if detail is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"request {number} is not among the recent")
        return Response(detail, media_type="application/json", headers=_NO_STORE)


class _FeedResponse(Response):
    media_type = "text/event-stream"

    def __init__(self, feed: Feed) -> None:
        super().__init__(headers={**_NO_STORE, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the viewer disconnects or the router stops."""
        try:
            await unless_disconnected(receive, self._send(send))
        except RequestCancelledError:
            logger.debug("viewer_gone")

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        events = self._feed.events()
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            await events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _without_slash(request: Request) -> Response:
    """Redirect to the path with a slash, on which the page's links depend.

    The target is relative, for proxies that serve the page under another path.
    """
    return RedirectResponse(
        f"../{PAGE_PATH.removeprefix('/')}", HTTPStatus.PERMANENT_REDIRECT, SECURITY_HEADERS
    )
