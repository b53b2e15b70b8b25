"""A record of an engine's steps by PyTorch's profiler, for TensorBoard, Perfetto or Chrome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

SUFFIX = ".pt.trace.json.gz"


class StepProfile:
    """Records from construction to `stop`. Both belong to the thread that steps the engine.

    The native kernels are one call per step here: PyTorch does not see their operations.
    """

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def part(self, name: str) -> AbstractContextManager[object]:
        """Return a context whose time is recorded under a name."""
        return record_function(f"baton: {name}")

    def stop(self, folder: Path, prefix: str) -> Path:
        """End the record; return the file that it was written to."""
        self._profile.stop()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{prefix}.{time.time_ns() // 1_000_000}{SUFFIX}"
        self._profile.export_chrome_trace(str(path))
        return path
