"""The pool runs every task of every job once, with threads that sleep, wake and come late."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.native.build import SOURCES, find_compiler


def build(folder: Path, *flags: str) -> Path:
    program = folder / "pool_stress"
    sources = [Path(__file__).parent / "pool_stress.cpp", SOURCES / "pool.cpp"]
    command = [find_compiler(), "-std=c++20", "-pthread", f"-I{SOURCES}", *flags]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as the library is."""
    return build(tmp_path_factory.mktemp("pool"), "-O2")


@pytest.mark.parametrize(("num_threads", "num_jobs"), [(2, 50_000), (4, 5_000)])
def test_every_task_runs_once(num_threads: int, num_jobs: int, program: Path) -> None:
    subprocess.run([program, str(num_threads), str(num_jobs)], check=True, timeout=120)


def test_there_are_no_races(tmp_path: Path) -> None:
    program = build(tmp_path, "-O1", "-g", "-fsanitize=thread")
    subprocess.run([program, "3", "3000"], check=True, timeout=120)
