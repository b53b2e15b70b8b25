"""Settings of the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.router.planning.base import Bounds, Limits
from services.router.planning.counts import Pace
from shared.config import flag_name, setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """How workers are planned. Of several routers on one Redis, one plans for all."""

    planner: Literal["off", "advise", "act"] = setting(
        "off",
        help="advise: say how many workers of each role are wanted, as metrics and on the live "
        "page; act: also change what workers prefer",
    )
    planner_interval_s: float = setting(5.0, help="seconds from one decision to the next")
    planner_startup_s: float = setting(
        60.0, help="seconds that a new worker needs to start: it is wanted that much earlier"
    )
    planner_cooldown_s: float = setting(
        60.0, help="seconds between two changed preferences, and before a count falls again"
    )
    planner_ttft_ms: float | None = setting(
        None, help="milliseconds to the first token that are planned for; default: --max-ttft-ms"
    )
    planner_itl_ms: float | None = setting(
        None, help="milliseconds between tokens that are planned for; default: --max-itl-ms"
    )
    planner_min_prefill: int = setting(1, help="least number of prefill workers that is wanted")
    planner_min_decode: int = setting(1, help="least number of decode workers that is wanted")
    planner_max_workers: int = setting(8, help="most workers that are wanted, of both roles")

    def __post_init__(self) -> None:
        for name in ("planner_interval_s", "planner_cooldown_s", "planner_max_workers"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0, not {getattr(self, name)}")
        for name in ("planner_startup_s", "planner_min_prefill", "planner_min_decode"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{flag_name(name)} must not be negative")
        for name in ("planner_ttft_ms", "planner_itl_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0, not {value}")
        least = self.planner_min_prefill + self.planner_min_decode
        if least > self.planner_max_workers:
            raise ConfigError(
                f"--planner-max-workers is {self.planner_max_workers}, and --planner-min-prefill "
                f"and --planner-min-decode are {least} together"
            )

    @property
    def limits(self) -> Limits:
        """Between which counts may be wanted."""
        return Limits(
            min_prefill=self.planner_min_prefill,
            min_decode=self.planner_min_decode,
            max_workers=self.planner_max_workers,
        )

    @property
    def pace(self) -> Pace:
        """How fast counts may change."""
        return Pace(startup_s=self.planner_startup_s, cooldown_s=self.planner_cooldown_s)

    def bounds(self, *, max_ttft_ms: float | None, max_itl_ms: float | None) -> Bounds:
        """Return what is planned for; default: the bounds beyond which requests are refused."""
        return Bounds(
            max_ttft_ms=self.planner_ttft_ms or max_ttft_ms,
            max_itl_ms=self.planner_itl_ms or max_itl_ms,
        )
