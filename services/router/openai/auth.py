"""The paths that need no key or an operator's key, and the caller of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.admission.caller import ANYBODY, Caller
from services.router.openai.operators.adapters import ADAPTER_PATHS
from services.router.openai.operators.lifecycle import LIFECYCLE_PATHS
from services.router.openai.operators.roles import PREFER_PATH

if TYPE_CHECKING:
    from starlette.requests import Request

#: Probes need no key. They only tell whether requests can be served.
OPEN_PATHS = frozenset({"/live", "/health", "/ping", "/ready"})
METRICS_PATH = "/metrics"
DASHBOARD_EVENTS_PATH = "/dashboard/events"
DASHBOARD_REQUEST_PATH = "/dashboard/request"
#: Paths that tell a tenant about the others (how much is running, and where) or change something.
OPERATOR_PATHS = frozenset(
    {
        METRICS_PATH,
        "/v1/route",
        DASHBOARD_EVENTS_PATH,
        DASHBOARD_REQUEST_PATH,
        "/load",
        "/server_info",
        "/reset_prefix_cache",
        *LIFECYCLE_PATHS,
        *ADAPTER_PATHS,
        PREFER_PATH,
    }
)


def caller_of(request: Request) -> Caller:
    """Return the caller that the middleware found."""
    caller: Caller = getattr(request.state, "caller", ANYBODY)
    return caller
