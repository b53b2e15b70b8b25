"""Settings of the decode worker."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.worker.config import WorkerConfig  # noqa: TC001 read at run time by the settings loader


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """The decode worker: receives KV blocks and writes the answers."""

    worker: WorkerConfig
    local_prefill_threshold: int = setting(
        16, help="prompts with at most this many uncached tokens are computed here"
    )
    max_prefill_attempts: int = setting(
        2, help="prefill workers to try before computing the prompt here"
    )
