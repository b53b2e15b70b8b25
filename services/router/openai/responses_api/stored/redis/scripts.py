"""Runs the Lua scripts in this folder, with the errors of Redis converted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import structlog

from shared.directory.redis.calls import mapped
from shared.errors import DeadlineError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from services.router.openai.responses_api.stored.base import ResponseKey

log = structlog.get_logger(__name__)

PREFIX = "baton:responses:"
_COMMON = "_common.lua"
_MESSAGE = (
    "stored responses are unavailable at the moment: try again, or send store of false for an "
    "answer that is not stored"
)


class ResponseScripts:
    """The scripts of one Redis. All entries of `clock_s`, and all keys, end after `max_age_s`."""

    def __init__(
        self, client: Redis, *, max_age_s: float, clock_s: Callable[[], float] | None = None
    ) -> None:
        """`clock_s`: the time instead of Redis's own."""
        #: The client's types have str where it returns bytes.
        self.client: Any = client
        self._age_ms = round(max_age_s * 1000)
        self._clock_s = clock_s
        folder = Path(__file__).parent / "lua"
        common = (folder / _COMMON).read_text(encoding="utf-8")
        self._scripts = {
            path.stem: client.register_script(common + path.read_text(encoding="utf-8"))
            for path in folder.glob("*.lua")
            if path.name != _COMMON
        }

    async def run(self, name: str, *args: Any) -> Any:
        """Run a script.

        Raises:
            UnavailableError: Redis does not answer, or refuses it.
        """
        now_ms = "" if self._clock_s is None else round(self._clock_s() * 1000)
        script = self._scripts[name]
        return await answered(script([PREFIX], [now_ms, self._age_ms, *args]))


async def answered(call: Awaitable[Any]) -> Any:
    """Return the result of a call of Redis.

    Raises:
        UnavailableError: there is none. The message is for clients; the log has the reason.
    """
    try:
        with mapped():
            return await call
    except (UnavailableError, DeadlineError) as error:
        log.warning("response_store_unavailable", reason=str(error))
        raise UnavailableError(_MESSAGE) from error


def member_of(key: ResponseKey) -> str:
    """Return the name of a response in keys and members: TENANT:ID, without other colons."""
    return ":".join(quote(part, safe="") for part in key)
