"""Settings of the Decode service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shared.config import setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """How answers get the KV of their prompts."""

    local_prefill_threshold: int = setting(
        16, help="prompts with at most this many uncached tokens are computed here"
    )
    max_prefill_attempts: int = setting(
        2, help="prefill workers to try before computing the prompt here"
    )
    transfer_stall_s: float = setting(
        4.0, help="a prefill worker that makes no progress for so long is given up"
    )
    transfer_by_layers: Literal["auto", "on", "off"] = setting(
        "auto",
        help="whether a prompt's KV is received by layers, the first ones while its last step "
        "computes the others, from prefill workers that compute steps in parts: on, off, or auto "
        "(where the wait for KV behind the first token was over a tenth of the computation)",
    )
    breaker_failures: int = setting(
        3, help="failures in a row after which a prefill worker is left alone; 1 if it is gone"
    )

    def __post_init__(self) -> None:
        if not self.transfer_stall_s > 0:
            raise ConfigError(f"--transfer-stall-s must be over 0, not {self.transfer_stall_s}")
        if self.breaker_failures < 1:
            raise ConfigError(f"--breaker-failures must be over 0, not {self.breaker_failures}")
