"""Runs kernels in Triton's interpreter: in a process of its own, since decoration chooses it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Where results are written; standard output without it.
_RESULTS = "BATON_INTERPRETED_RESULTS"


def run_interpreted(module: str, **more_env: str) -> dict[str, str | None]:
    """Run a module that ends with `report`: what went wrong with each of its checks, or null.

    more_env: variables of its process.
    """
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder) / "results.json", Path(folder) / "log"
        env = {**os.environ, **more_env, "TRITON_INTERPRET": "1", _RESULTS: str(results)}
        with log.open("wb") as file:
            # A copy of a process that has loaded PyTorch, and not Triton.
            process = WarmProcess((module,), cwd=Path.cwd(), env=env, log=file)
        assert process.wait() == 0, log.read_text(errors="replace")
        found: dict[str, str | None] = json.loads(results.read_text())
        return found


def report(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run all checks in this process, with names that contain an argument if there is one."""
    from kernels.interpreter import install

    torch.set_num_threads(1)
    install()
    results: dict[str, str | None] = {}
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, check in checks.items():
        if wanted not in name:
            continue
        try:
            check()
            results[name] = None
        except Exception:  # noqa: BLE001 the test that reads it fails with it
            results[name] = traceback.format_exc()
    path = os.environ.get(_RESULTS)
    with Path(path).open("w") if path else contextlib.nullcontext(sys.stdout) as file:
        json.dump(results, file)


class poisoned_empty:  # noqa: N801 reads as the context it is
    """Memory that PyTorch hands out is NaN: what a kernel forgets to write shows."""

    def __enter__(self) -> None:
        self._originals = {name: getattr(torch, name) for name in ("empty", "empty_like")}
        for name, original in self._originals.items():
            setattr(torch, name, _poisoning(original))

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(torch, name, original)


def _poisoning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        memory = original(*args, **kwargs)
        if memory.is_floating_point():
            return memory.fill_(float("nan"))
        return memory.fill_(255 if memory.dtype == torch.uint8 else -1)

    return empty
