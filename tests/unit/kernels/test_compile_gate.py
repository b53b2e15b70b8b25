"""The gate passes our kernels, and would not pass bad ones."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from kernels.compile_cases import all_cases
from kernels.compile_gate.gate import SHARED_LIMIT_BYTES, Resources
from kernels.compile_gate.record import Record

ROOT = Path(__file__).resolve().parents[3]
GOOD = Resources(registers=64, stack_bytes=0, spill_accesses=0, shared_bytes=1024)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: kernels are compiled or interpreted, and stay so, once imported."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_DEFAULT_FP_FUSION": "1"}
    env.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def gate() -> subprocess.CompletedProcess[str]:
    """The command: what is recorded is not compiled again, but for three cases drawn at random."""
    return run_python("-m", "kernels.compile_gate", "--sample", "3")


@pytest.mark.timeout(900)
def test_all_kernels_pass(gate: subprocess.CompletedProcess[str]) -> None:
    assert gate.returncode == 0, gate.stdout + gate.stderr
    # With another compiler all of it is compiled: right, and slow.
    if Record().compiler == version("triton"):
        assert "not recorded" not in gate.stdout
    lines = gate.stdout.splitlines()
    assert all(line.endswith(" ok") for line in lines)
    assert {line.split()[0] for line in lines} == {f"sm_{arch}" for arch in SHARED_LIMIT_BYTES}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arch", "name"),
    [pytest.param(a, c.name, id=f"sm_{a}-{c.name}") for c in all_cases() for a in c.archs],
)
def test_a_case_passes(arch: int, name: str, gate: subprocess.CompletedProcess[str]) -> None:
    # A name may be the beginning of another one.
    begin = re.compile(rf"sm_{arch} {re.escape(name)} +(registers|does not compile)")
    [line] = [line for line in gate.stdout.splitlines() if begin.match(line)]
    assert line.endswith(" ok"), line


def test_every_kernel_has_a_case_on_every_architecture() -> None:
    listed = run_python(
        "-c",
        "from kernels.compile_cases import all_cases\n"
        "for case in all_cases():\n"
        "    for arch in case.archs: print(case.kernel.__module__, case.kernel.__name__, arch)",
    )
    assert listed.returncode == 0, listed.stderr
    covered = set(listed.stdout.splitlines())
    for path in (ROOT / "kernels").rglob("kernel.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for kernel in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE):
            for arch in SHARED_LIMIT_BYTES:
                assert f"{module} {kernel} {arch}" in covered


def test_bad_kernels_fail_each_for_its_reason() -> None:
    done = run_python("-m", "tests.fakes.bad_kernels")
    assert done.returncode == 1, done.stderr
    well = re.findall(r"^sm_90 (product|tile at once) .* ok$", done.stdout, re.MULTILINE)
    assert well == ["product", "tile at once"]
    few_warps, many_stages, narrow_loads, wrong_shapes = (
        next(line for line in done.stdout.splitlines() if f"sm_90 {name} " in line)
        for name in ("too few warps", "too many stages", "narrow loads", "wrong shapes")
    )
    assert "spills" in few_warps
    assert "of shared memory, over" in many_stages
    assert "no instruction like" in narrow_loads
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
