"""A record of an engine's steps by PyTorch's profiler, for TensorBoard, Perfetto or Chrome."""

from __future__ import annotations

import gzip
import shutil
import time
from typing import TYPE_CHECKING

import torch
from torch.autograd.profiler import profile, record_function

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

SUFFIX = ".pt.trace.json.gz"


class StepProfile:
    """Records from construction to `stop`. Both belong to the thread that steps the engine.

    The native kernels are one call per step here: PyTorch does not see their operations.
    """

    def __init__(self) -> None:
        # `torch.profiler.profile` is this one and 900 modules of the compiler that it imports
        # first: two seconds in which the engine would compute nothing.
        device = "cuda" if torch.cuda.is_available() else None
        self._profile = profile(use_cpu=True, use_device=device, use_kineto=True)
        self._profile.__enter__()

    def part(self, name: str) -> AbstractContextManager[object]:
        """Return a context whose time is recorded under a name."""
        return record_function(f"baton: {name}")

    def stop(self, folder: Path, prefix: str) -> Path:
        """End the record; return the file that it was written to."""
        self._profile.__exit__(None, None, None)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{prefix}.{time.time_ns() // 1_000_000}{SUFFIX}"
        plain = path.with_suffix("")
        self._profile.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
        return path
