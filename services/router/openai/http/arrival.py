"""When a request arrived: its body may take long to come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request


def arrived_s(request: Request) -> float:
    """Return time.monotonic() at the first call for this request."""
    found: float | None = getattr(request.state, "arrival_s", None)
    if found is None:
        found = request.state.arrival_s = time.monotonic()
    return found
