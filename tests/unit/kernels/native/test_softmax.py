"""What attention's softmax is made of, against numbers in double precision."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kernels.native.build import FLAGS, SOURCES, find_compiler


def test_powers_are_as_exact_as_what_they_become(tmp_path: Path) -> None:
    program, own = tmp_path / "softmax_errors", Path(__file__).parent / "softmax_errors.cpp"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run([find_compiler(), *flags, f"-I{SOURCES}", own, "-o", program], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    kept, rounded = map(float, done.stdout.split())
    assert kept < 3e-7
    assert rounded < 2**-9 / 16  # rounding to bfloat16 loses up to 2**-9
