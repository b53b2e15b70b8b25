"""The gate passes our kernels, and would not pass bad ones."""

from __future__ import annotations

import dataclasses
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("triton")

from kernels.compile_cases import all_cases
from kernels.compile_gate.gate import SHARED_LIMIT_BYTES, Resources
from kernels.compile_gate.record import Record
from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
GOOD = Resources(registers=64, stack_bytes=0, spill_accesses=0, shared_bytes=1024)


def run(folder: Path, *argv: str) -> tuple[int, str]:
    """The exit code and the output of a process of its own.

    Kernels are compiled or interpreted, and stay so, once imported.
    """
    env = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
    env.pop("TRITON_INTERPRET", None)
    log = folder / "log"
    with log.open("wb") as file:
        # A copy of a process that has loaded PyTorch, and not Triton.
        process = WarmProcess(argv, cwd=ROOT, env=env, log=file)
    return process.wait(), log.read_text()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """The command: what is recorded is not compiled again, but for two cases drawn at random."""
    return run(tmp_path_factory.mktemp("gate"), "kernels.compile_gate", "--sample", "2")


@pytest.fixture(scope="module")
def lines(gate: tuple[int, str]) -> Mapping[str, str]:
    """What the gate says of each case, by architecture and name."""
    found = (
        re.split(r" +(?=registers|does not compile)", line, maxsplit=1)
        for line in gate[1].splitlines()
    )
    return {each[0]: each[-1] for each in found}


@pytest.mark.timeout(900)
def test_all_kernels_pass(gate: tuple[int, str]) -> None:
    code, said = gate
    assert code == 0, said
    # With another compiler all of it is compiled: right, and slow.
    if Record().compiler == version("triton"):
        assert "not recorded" not in said
    lines = said.splitlines()
    assert all(line.endswith(" ok") for line in lines)
    assert {line.split()[0] for line in lines} == {f"sm_{arch}" for arch in SHARED_LIMIT_BYTES}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arch", "name"),
    [pytest.param(a, c.name, id=f"sm_{a}-{c.name}") for c in all_cases() for a in c.archs],
)
def test_a_case_passes(arch: int, name: str, lines: Mapping[str, str]) -> None:
    assert lines[f"sm_{arch} {name}"].endswith(" ok")


def test_every_kernel_has_a_case_on_every_architecture() -> None:
    covered = {
        f"{case.kernel.__module__} {case.kernel.__name__} {arch}"
        for case in all_cases()
        for arch in case.archs
    }
    for path in (ROOT / "kernels").rglob("kernel.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for kernel in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE):
            for arch in SHARED_LIMIT_BYTES:
                assert f"{module} {kernel} {arch}" in covered


@pytest.mark.timeout(900)
def test_bad_kernels_fail_each_for_its_reason(tmp_path: Path) -> None:
    code, said = run(tmp_path, "tests.fakes.kernels.bad_kernels")
    assert code == 1, said
    well = re.findall(r"^sm_90 (product|tile at once) .* ok$", said, re.MULTILINE)
    assert well == ["product", "tile at once"]
    few_warps, many_stages, narrow_loads, wrong_shapes = (
        next(line for line in said.splitlines() if f"sm_90 {name} " in line)
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
