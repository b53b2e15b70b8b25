"""The gate passes our kernels, and would not pass bad ones."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from kernels.compile_gate import SHARED_LIMIT_BYTES, Resources

ROOT = Path(__file__).resolve().parents[3]
GOOD = Resources(registers=64, stack_bytes=0, spill_accesses=0, shared_bytes=1024)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: kernels are compiled or interpreted, and stay so, once imported."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_DEFAULT_FP_FUSION": "1"}
    env.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, check=False
    )


def test_all_kernels_pass() -> None:
    done = run_python("-m", "kernels.compile_gate")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(line.endswith(" ok") for line in lines)
    for kernel in (ROOT / "kernels").glob("*/kernel.py"):
        for arch in SHARED_LIMIT_BYTES:
            assert any(line.startswith(f"sm_{arch} {kernel.parent.name} ") for line in lines)


def test_bad_kernels_fail_each_for_its_reason() -> None:
    done = run_python("-m", "tests.fakes.bad_kernels")
    assert done.returncode == 1, done.stderr
    few_warps, many_stages, wrong_shapes = (
        next(line for line in done.stdout.splitlines() if f"sm_90 {name} " in line)
        for name in ("too few warps", "too many stages", "wrong shapes")
    )
    assert "spills" in few_warps
    assert "of shared memory, over" in many_stages
    assert "does not compile" in wrong_shapes


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"missing": ("HGMMA",)}, "no instruction like HGMMA"),
        ({"spill_accesses": 8}, "spills: 8 accesses"),
        ({"stack_bytes": 16}, "uses 16 bytes of stack"),
        ({"shared_bytes": SHARED_LIMIT_BYTES[80] + 1}, "shared memory"),
    ],
)
def test_each_limit_counts(change: dict[str, Any], complaint: str) -> None:
    assert GOOD.violations(80) == []
    (found,) = dataclasses.replace(GOOD, **change).violations(80)
    assert complaint in found


def test_a_newer_gpu_has_more_shared_memory() -> None:
    between = dataclasses.replace(GOOD, shared_bytes=SHARED_LIMIT_BYTES[80] + 1)
    assert between.violations(80)
    assert not between.violations(90)
