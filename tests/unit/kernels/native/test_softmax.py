"""Attention over a prompt, and what its softmax is made of, against numbers in double precision."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kernels.native.build import FLAGS, SOURCES, find_compiler


def run(name: str, folder: Path, *flags: str) -> str:
    """Return what a program beside this file prints; it must end with 0."""
    program = folder / name
    usual = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    sources = map(str, (Path(__file__).parent / f"{name}.cpp", SOURCES / "amx.cpp"))
    compile_it = [find_compiler(), *usual, *flags, f"-I{SOURCES}", *sources, "-o", str(program)]
    subprocess.run(compile_it, check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_powers_are_as_exact_as_what_they_become(tmp_path: Path) -> None:
    kept, rounded = map(float, run("softmax_errors", tmp_path).split())
    assert kept < 3e-7
    assert rounded < 2**-9 / 16  # rounding to bfloat16 loses up to 2**-9


def test_scores_that_grow_and_fall_along_the_context(tmp_path: Path) -> None:
    """It ends with 0 if a row's bits depend neither on the rows nor on the spans of its task."""
    errors = dict(line.split() for line in run("attention_errors", tmp_path, "-O1").splitlines())
    assert float(errors["bfloat16"]) < 2**-7  # weights and results lose up to 2**-9 each
    assert float(errors["float32"]) < 3e-4  # of scores up to 300 that are summed in float32
