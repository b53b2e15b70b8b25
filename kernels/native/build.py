"""Compiles the C++ sources for this CPU once and caches the library.

The cache is `$BATON_CACHE_DIR`, or `baton` under `$XDG_CACHE_HOME` or `~/.cache`. `CXX` names the
compiler; otherwise the first of g++, clang++ and c++ is taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
#: Without errno and traps, selects and conversions can be vectors; results do not change.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-pthread",
)
_COMPILERS = ("g++", "clang++", "c++")
#: Beside other work a slow machine takes several minutes.
_COMPILE_TIMEOUT_S = 900.0


class NativeUnavailableError(Exception):
    """The library cannot be compiled here; the message gives the reason and a remedy."""


def build_library() -> Path:
    """Return the shared library for this CPU; compile it (a minute on two cores) if not cached.

    Safe in several processes at once: one compiles, the others wait for it.

    Raises:
        NativeUnavailableError: there is no compiler, it fails, or the cache cannot be written.
    """
    compiler = find_compiler()
    target = cache_dir() / f"native-{_fingerprint(compiler)}.so"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / "native.lock").open("w") as lock:
            # A start that says nothing for a minute looks like one that hangs.
            log.info("CPU kernels are compiled once, in a minute: %s", target.parent)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_file():
                _compile(compiler, target)
    except OSError as error:
        raise NativeUnavailableError(
            f"cannot write the kernel cache {target.parent}: {error}; set BATON_CACHE_DIR"
        ) from error
    return target


def find_compiler() -> str:
    """Return the path of the C++ compiler.

    Raises:
        NativeUnavailableError: there is none.
    """
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise NativeUnavailableError(
        f"no C++ compiler ({wanted or ', '.join(_COMPILERS)}): install g++, or set CXX"
    )


def cache_dir() -> Path:
    """Return the folder of compiled libraries."""
    own = os.environ.get("BATON_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "baton"


def _compile(compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        library = Path(folder) / target.name
        sources = _translation_units()
        objects = [Path(folder) / f"{number}.o" for number in range(len(sources))]
        compiling = [flag for flag in FLAGS if flag != "-shared"]
        _run_all(
            [
                [compiler, *compiling, f"-I{SOURCES}", "-c", str(source), "-o", str(output)]
                for source, output in zip(sources, objects, strict=True)
            ]
        )
        _run_all([[compiler, *FLAGS, *map(str, objects), "-o", str(library)]])
        library.replace(target)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands in parallel. None of their processes is left when one does not end."""
    running = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)
        for command in commands
    ]
    try:
        errors = [process.communicate(timeout=_COMPILE_TIMEOUT_S)[1] for process in running]
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailableError(f"{commands[0][0]} did not end in time") from error
    finally:
        for process in running:
            if process.poll() is None:  # a compiler is a child of the command
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    for process, stderr in zip(running, errors, strict=True):
        if process.returncode:
            raise NativeUnavailableError(f"{commands[0][0]} failed:\n{stderr[-2000:]}")


def _translation_units() -> list[Path]:
    return sorted(SOURCES.rglob("*.cpp"))


def _fingerprint(compiler: str) -> str:
    """Return a digest of all that the library depends on: sources, flags, compiler and CPU."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    digest.update(_compiler_version(compiler).encode())
    digest.update(_cpu().encode())
    for path in sorted(SOURCES.rglob("*.*")):
        name = path.relative_to(SOURCES).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compiler_version(compiler: str) -> str:
    try:
        return subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailableError(f"{compiler} does not run: {error}") from error


def _cpu() -> str:
    """Return the CPU's model and features: hosts with other CPUs may share the cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "features", "cpu part")
    return "\n".join(sorted({line for line in lines if line.lower().startswith(wanted)}))
