"""Settings of stored responses: where they are kept, and how many for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shared.config import flag_name, setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSettings:
    """The store of the Responses API. Without one, clients send whole conversations."""

    responses_store: Literal["off", "memory", "redis"] = setting(
        "off",
        help="where answers of /v1/responses are kept for previous_response_id, background and "
        "GET: off (nowhere), memory (in this process, until it ends), or redis (in --redis-url, "
        "for all routers)",
    )
    responses_store_entries: int = setting(1000, help="stored responses, of all tenants together")
    responses_store_bytes: int = setting(
        256 << 20, help="bytes of stored responses and their conversations, of all tenants together"
    )
    responses_store_age_s: float = setting(
        86_400.0, help="seconds after which a stored response is removed"
    )

    responses_store_event_bytes: int = setting(
        4 << 20,
        help="bytes of events that are kept of a streamed response in the background, for clients "
        "that come back; the earliest are removed first",
    )

    def __post_init__(self) -> None:
        for name in (
            "responses_store_entries",
            "responses_store_bytes",
            "responses_store_age_s",
            "responses_store_event_bytes",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0, not {getattr(self, name)}")
