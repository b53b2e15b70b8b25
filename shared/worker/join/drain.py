"""Empties a worker that is stopped, within its grace period.

Requests inside may finish; one that cannot is ended with DrainingError, and the router continues it
on another worker. What was computed here stays readable for a moment, to save computing it again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from shared.worker.config import DrainMode

if TYPE_CHECKING:
    from shared.worker.parts import WorkerParts

log = structlog.get_logger(__name__)

#: Of the grace period: for readers of our blocks, and for leaving and closing what is open.
_LINGER_SHARE = 0.25
_CLOSING_SHARE = 0.1


async def drain(parts: WorkerParts, grace_s: float) -> None:
    """Return when no request is inside and what was computed is no longer wanted.

    It leaves enough of `grace_s` for the process to end within it. With 0 no request may finish,
    and nothing stays readable: what is here cannot be trusted.
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
