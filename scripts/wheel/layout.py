"""What the distribution consists of, and where each file of the repository lies in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The one package that an environment gets.
PACKAGE = "baton"
#: Folders and files of the repository, and their places in the wheel.
PLACES = {
    "proto/baton": "baton",
    "shared": "baton/shared",
    "services": "baton/services",
    "kernels": "baton/kernels",
    "cli": "baton/cli",
    "client/baton_client": "baton/baton_client",
    "models/pydoc/checkpoint": "baton/models/pydoc/checkpoint",
    # What `baton bench` has of vLLM's; the other benchmarks measure the repository.
    "benchmarks/__init__.py": "baton/benchmarks/__init__.py",
    **{
        f"benchmarks/{name}": f"baton/benchmarks/{name}"
        for name in (
            "latency.py",
            "load",
            "offline",
            "serve.py",
            "startup.py",
            "sweep",
            "throughput.py",
        )
    },
}
#: Of our images only, whose paths they know; what compiles for GPUs that are not there.
LEFT_OUT = ("cli/healthcheck.py", "kernels/compile_gate", "kernels/compile_cases.py")
#: Names that are top-level in the repository, and below `PACKAGE` in the wheel.
MOVED = ("baton_client", "benchmarks", "cli", "kernels", "models", "services", "shared")
#: What the wheel is described by, at its build and in the source distribution.
ABOUT = ("pyproject.toml", "README.md", "LICENSE")
#: What builds it: part of the source distribution, so that a wheel can be built from that.
BUILDER = ("scripts/__init__.py", "scripts/wheel")


@dataclass(frozen=True, slots=True)
class Placed:
    """A file of the repository, and its path in the wheel."""

    source: Path
    target: str


def wheel_files(root: Path) -> Iterator[Placed]:
    """Yield the files of the wheel in the order of the places."""
    for place, target in PLACES.items():
        top = root / place
        for source in _files(top):
            if not _is_left_out(source.relative_to(root)):
                inner = source.relative_to(top)
                yield Placed(source, (Path(target) / inner).as_posix())


def source_files(root: Path) -> Iterator[Path]:
    """Yield what a wheel is built from."""
    for place in (*ABOUT, *BUILDER):
        yield from _files(root / place)
    for placed in wheel_files(root):
        yield placed.source


def _files(top: Path) -> Iterator[Path]:
    """Yield a file itself, or the files of a folder; neither caches nor hidden ones.

    Raises:
        FileNotFoundError: there is no such file or folder.
    """
    if top.is_file():
        yield top
        return
    for path in sorted(top.iterdir()):
        if path.name != "__pycache__" and not path.name.startswith("."):
            yield from _files(path)


def _is_left_out(path: Path) -> bool:
    # Each kernel's folder has a `compile_cases.py`, which only the compile gate reads.
    is_case = path.parts[0] == "kernels" and path.name == "compile_cases.py"
    return is_case or any(path.is_relative_to(left) for left in LEFT_OUT)
