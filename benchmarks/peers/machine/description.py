"""What the machine is, without saying whose, and which revision runs on it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

from cli.places import ROOT

#: Instruction sets that decide how fast a matrix product can be.
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "sve", "bf16")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, kernel and libraries. No host name, no paths, no addresses."""
    facts = _cpuinfo()
    flags = facts.get("flags", facts.get("Features", "")).split()
    return {
        "processor": facts.get("model name", platform.machine()),
        "family": f"family {facts.get('cpu family', '?')} model {facts.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "features": [name for name in FEATURES if name in flags],
        "virtual": "hypervisor" in flags,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def revision() -> str:
    """Of the working tree, marked if it has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measured_cores() -> tuple[int, int]:
    """The two cores that everything is measured on."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[min(1, len(cores) - 1)]


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
