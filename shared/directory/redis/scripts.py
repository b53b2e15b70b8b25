"""Reads the Lua scripts in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

COMMON = "_lease.lua"


def read_scripts(client: Redis) -> dict[str, Any]:
    """Return the scripts by name, each preceded by the common functions."""
    folder = Path(__file__).parent / "lua"
    common = (folder / COMMON).read_text(encoding="utf-8")
    return {
        path.stem: client.register_script(common + path.read_text(encoding="utf-8"))
        for path in folder.glob("*.lua")
        if path.name != COMMON
    }
