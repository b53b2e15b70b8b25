"""Attention over int8 keys and values, against numbers in double precision."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kernels.native.build import FLAGS, SOURCES, find_compiler

#: Largest errors, as a share of the largest value that weights could give. Where sums are not
#: those of integers, weights may be rounded to bfloat16: without a matrix unit, for heads of 96.
ROUNDED_BOUND = 4e-3
BOUNDS = {"of-96": ROUNDED_BOUND, "huge": 8e-4, "of-256": 5e-4, "none": 2e-6}
USUAL_BOUND = 2.5e-4


def test_sums_are_close_and_the_same_in_any_company(tmp_path: Path) -> None:
    program = tmp_path / "int8_attention"
    own = Path(__file__).parent / "int8_attention.cpp"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    command = [find_compiler(), *flags, "-O1", f"-I{SOURCES}", "-include", str(SOURCES / "amx.cpp")]
    subprocess.run([*command, str(own), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    errors = {name: float(error) for name, error in map(str.split, done.stdout.splitlines())}
    is_exact = errors.pop("integers") == 1
    assert len(errors) == 17
    for name, error in errors.items():
        bound = BOUNDS.get(name, USUAL_BOUND) if is_exact else ROUNDED_BOUND
        assert error < bound, (name, error)
