"""Settings of the reuse of peers' prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shared.config import setting


class ReusePolicy(StrEnum):
    """Condition for fetching a longer prefix from a peer."""

    #: If it is expected to take less time than computing it.
    AUTO = "auto"
    #: Always.
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSettings:
    """Whether prefixes are fetched, and time limits."""

    reuse_policy: ReusePolicy = setting(
        ReusePolicy.AUTO,
        help="fetch a longer prefix from a peer: auto (when moving beats computing), always, never",
    )
    reuse_patience_ms: float = setting(
        250.0,
        help="milliseconds that a fetch may always take; if computing takes longer, that time",
    )
