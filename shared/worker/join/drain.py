"""Drains a worker that is stopped, within its grace period.

Running requests may finish; one that cannot is ended with DrainingError, and the router continues
it on another worker. Its KV stays readable for a moment, so that it need not be computed again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from shared.worker.config import DrainMode

if TYPE_CHECKING:
    from shared.worker.parts import WorkerParts

log = structlog.get_logger(__name__)

#: Share of the grace period for readers of our blocks, for leaving, and for closing.
_LINGER_SHARE = 0.25
_CLOSING_SHARE = 0.1


async def drain(parts: WorkerParts, grace_s: float) -> None:
    """Return when no request is running and the computed KV is no longer needed.

    Leaves enough of `grace_s` for the process to end within it. With 0 no request may finish, and
    no KV stays readable: it cannot be trusted.
    """
    config, gate = parts.config, parts.gate
    linger_s = min(config.drain_linger_s, _LINGER_SHARE * grace_s)
    finish_s = max(0.0, grace_s * (1 - _CLOSING_SHARE) - linger_s)
    if config.drain_mode is DrainMode.MOVE:
        finish_s = 0.0
    log.info("draining", worker=str(parts.worker), num_inside=gate.num_inside, finish_s=finish_s)
    num_moved = await gate.drain(finish_s)
    if not num_moved:
        return
    log.warning("drain_moves", worker=str(parts.worker), num_requests=num_moved)
    await asyncio.gather(gate.wait_empty(linger_s), asyncio.sleep(linger_s))
