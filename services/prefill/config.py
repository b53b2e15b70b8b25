"""Settings of the prefill worker."""

from __future__ import annotations

from dataclasses import dataclass

from shared.worker.config import WorkerConfig  # noqa: TC001 read at run time by the settings loader


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """The prefill worker: computes KV blocks and pushes them to decode workers."""

    worker: WorkerConfig
