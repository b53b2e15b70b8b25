"""Settings of the marks around a model's reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSettings:
    """vLLM's `reasoning_start_str` and `reasoning_end_str`."""

    reasoning_marks: tuple[str, ...] = setting(
        (),
        help='the two texts around reasoning, as ["BEGIN", "END"], where no parser knows them',
    )

    def __post_init__(self) -> None:
        if len(self.reasoning_marks) not in {0, 2} or not all(self.reasoning_marks):
            message = f"--reasoning-marks must be two texts, not {list(self.reasoning_marks)}"
            raise ConfigError(message)
