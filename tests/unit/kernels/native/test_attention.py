"""Attention, over a prompt and over int8 keys and values, against numbers in double precision."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.native.build import FLAGS, SOURCES, find_compiler

#: Largest errors, as a share of the largest value that weights could give. Where sums are not
#: those of integers, weights may be rounded to bfloat16: for heads of 96, or with AVX-512 and no
#: matrix unit.
ROUNDED_BOUND = 4e-3
BOUNDS = {"of-96": ROUNDED_BOUND, "huge": 8e-4, "of-256": 5e-4, "none": 2e-6}
USUAL_BOUND = 2.5e-4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`attention_errors.cpp`."""
    made = tmp_path_factory.mktemp("attention") / "attention_errors"
    own = Path(__file__).parent / "attention_errors.cpp"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    command = [find_compiler(), *flags, "-O1", f"-I{SOURCES}", "-include", "vectors/amx.cpp"]
    subprocess.run([*command, str(own), "-o", str(made)], check=True)
    return made


def errors_of(program: Path, what: str) -> dict[str, float]:
    """It ends with 0 if a row's bits depend neither on its company nor on the spans of its task."""
    done = subprocess.run([program, what], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return {name: float(error) for name, error in map(str.split, done.stdout.splitlines())}


def test_scores_that_grow_and_fall_along_the_context(program: Path) -> None:
    errors = errors_of(program, "prompts")
    assert errors["bfloat16"] < 2**-7  # weights and results lose up to 2**-9 each
    assert errors["float32"] < 3e-4  # of scores up to 300 that are summed in float32


def test_sums_are_close_and_the_same_in_any_company(program: Path) -> None:
    errors = errors_of(program, "int8")
    is_exact = errors.pop("integers") == 1
    assert len(errors) == 17
    for name, error in errors.items():
        bound = BOUNDS.get(name, USUAL_BOUND) if is_exact else ROUNDED_BOUND
        assert error < bound, (name, error)
