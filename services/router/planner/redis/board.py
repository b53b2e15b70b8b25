"""A Board in Redis. Leases and cooldowns are counted by Redis's own clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from services.router.planner.board import Exchange
from shared.directory.redis.calls import mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

PREFIX = "baton:planner:"
#: A decision is kept this long for a router that takes the lead over.
DECISION_S = 3600.0


class RedisBoard:
    """See Board."""

    def __init__(self, client: Redis, *, model: str, name: str, lease_s: float) -> None:
        """Meet the planners of `model`. `name`: of this process, and of no other ever.

        `lease_s`: without an exchange for this time a router has lost the lead.
        """
        self._name = name
        self._lease_ms = round(lease_s * 1000)
        self._prefix = f"{PREFIX}{quote(model, safe='')}:"
        folder = Path(__file__).parent / "lua"
        self._scripts: dict[str, Any] = {
            path.stem: client.register_script(path.read_text(encoding="utf-8"))
            for path in folder.glob("*.lua")
        }

    async def exchange(self, report: bytes) -> Exchange:
        """See Board."""
        keys = ["leader", "term", "routers", "moved", "decision"]
        leads, term, ago_ms, decision, reports = await self._run(
            "exchange", keys, [self._name, report, self._lease_ms]
        )
        return Exchange(
            leads=bool(leads),
            term=int(term),
            reports=list(reports),
            decision=decision,
            moved_ago_s=None if ago_ms < 0 else ago_ms / 1000,
        )

    async def claim(self, term: int, *, cooldown_s: float) -> bool:
        """See Board."""
        args = [self._name, term, round(cooldown_s * 1000)]
        return bool(await self._run("claim", ["leader", "moved"], args))

    async def decide(self, term: int, decision: bytes) -> bool:
        """See Board."""
        args = [self._name, term, decision, round(DECISION_S * 1000)]
        return bool(await self._run("decide", ["leader", "decision"], args))

    async def resign(self) -> None:
        """See Board."""
        await self._run("resign", ["leader", "term", "routers"], [self._name])

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        with mapped():
            return await self._scripts[script]([self._prefix + key for key in keys], args)
