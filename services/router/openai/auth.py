"""Which paths need which kind of key, and whose a request is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.admission.caller import ANYBODY, Caller

if TYPE_CHECKING:
    from starlette.requests import Request

#: Probes have no keys, and learn nothing but whether requests can be served.
OPEN_PATHS = frozenset({"/live", "/health", "/ping", "/ready"})
METRICS_PATH = "/metrics"
DASHBOARD_EVENTS_PATH = "/dashboard/events"
DASHBOARD_REQUEST_PATH = "/dashboard/request"
#: What tells one tenant of the others: how much is going on, and where.
OPERATOR_PATHS = frozenset(
    {METRICS_PATH, "/v1/route", DASHBOARD_EVENTS_PATH, DASHBOARD_REQUEST_PATH}
)


def caller_of(request: Request) -> Caller:
    """Whose request it is, as the middleware found out."""
    caller: Caller = getattr(request.state, "caller", ANYBODY)
    return caller
