"""Settings of the worker program: the same for every role."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.decode.config import DecodeSettings
from shared.worker.config import WorkerConfig  # noqa: TC001 read at run time by the settings loader


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgramConfig:
    """A worker: computes KV blocks for other workers, and writes answers."""

    worker: WorkerConfig
    decode: DecodeSettings = field(default_factory=DecodeSettings)
