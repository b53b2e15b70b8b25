"""Checks of this machine: software, processor, memory, limits, ports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok, warn
from cli.extras import Extra, is_there, remedy
from cli.huge_pages import obstacle
from cli.places import IS_INSTALLED, ROOT
from cli.start.ports import is_free

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.doctor.finding import Finding

#: The router's image has no other service and no torch.
_ONLY_ROUTER = (
    not is_there(Extra.WORKER) if IS_INSTALLED else not (ROOT / "services" / "decode").is_dir()
)
#: Images have no Makefile; the workers' image has no web framework.
_ONLY_WORKER = not _ONLY_ROUTER and (
    not is_there(Extra.ROUTER) if IS_INSTALLED else not (ROOT / "Makefile").is_file()
)
_EXTRAS = [Extra.ROUTER] * (not _ONLY_WORKER) + [Extra.WORKER] * (not _ONLY_ROUTER)
#: By distribution: whether a process of the cluster needs it in any case.
PACKAGES = (
    ("torch", not _ONLY_ROUTER),
    ("grpcio", True),
    ("protobuf", True),
    ("tokenizers", True),
    ("safetensors", not _ONLY_ROUTER),
    ("pyzmq", not _ONLY_ROUTER),
    ("fastapi", not _ONLY_WORKER),
    ("triton", False),
)
#: CPU features that the kernels use.
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
#: Compilers that kernels/native/build.py looks for.
COMPILERS = ("g++", "clang++", "c++")
MIN_FILES = 1024
MIN_MEMORY_GIB = 2.0


def check_machine() -> Iterator[Finding]:
    """Run all checks that need no model and no cluster."""
    yield from check_python()
    yield from check_packages()
    yield from check_processor()
    if not _ONLY_ROUTER:
        yield from check_compiler()
    yield from check_memory()
    if not _ONLY_WORKER:
        yield from check_huge_pages()
    yield from check_limits()


def check_python() -> Iterator[Finding]:
    """Check the version of the interpreter."""
    yield ok("python", f"{platform.python_version()} ({sys.executable})")


def check_packages() -> Iterator[Finding]:
    """Check the packages that the processes import."""
    for name, needed in PACKAGES:
        try:
            yield ok(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            if needed:
                yield fail(name, "not installed", remedy(_EXTRAS))
            else:
                yield ok(name, "not installed; nothing here needs it")


def check_processor() -> Iterator[Finding]:
    """Check the cores that this process may use, and their vector units."""
    num_cores = len(os.sched_getaffinity(0))
    known = _cpu_flags()
    found = [feature for feature in FEATURES if feature in known]
    text = f"{num_cores} cores, {' '.join(found) or 'no vector extension known to help'}"
    if num_cores < 2:
        yield warn(
            "cpu", text, "prefill and decode share one core: expect no gain from two workers"
        )
    elif known and "avx2" not in known and platform.machine() == "x86_64":
        yield warn("cpu", text, "without AVX2 the CPU path is slow")
    else:
        yield ok("cpu", text)


def check_compiler() -> Iterator[Finding]:
    """Check for a compiler, which is optional: the CPU kernels are compiled on first use."""
    wanted = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else COMPILERS)), None)
    if found:
        yield ok("C++ compiler", found)
    else:
        text = f"{wanted or 'none'}; without it PyTorch computes, several times slower"
        yield warn("C++ compiler", text, "apt-get install g++, or set CXX")


def check_memory() -> Iterator[Finding]:
    """Check the free memory."""
    import psutil

    memory = psutil.virtual_memory()
    available_gib = memory.available / 2**30
    text = f"{available_gib:.1f} of {memory.total / 2**30:.1f} GiB available"
    if available_gib < MIN_MEMORY_GIB:
        yield warn("memory", text, "give the workers fewer blocks: --num-blocks")
    else:
        yield ok("memory", text)


def check_huge_pages() -> Iterator[Finding]:
    """Check that the router's objects can lie in pages of 2 MiB."""
    why, remedied_by = obstacle()
    if why:
        yield warn(
            "huge pages", f"none: {why}", f"{remedied_by}; a router of many streams is slower"
        )
    else:
        yield ok("huge pages", "for the router's objects")


def check_limits() -> Iterator[Finding]:
    """Check the limit of open files: each connection and each shared block of memory uses one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_FILES:
        yield warn("open files", f"limit {soft}", f"ulimit -n {min(max(hard, soft), 65536)}")
    else:
        yield ok("open files", f"limit {soft}")


def check_ports(host: str, ports: dict[str, int]) -> Iterator[Finding]:
    """Check whether a cluster could start. `ports` is by flag."""
    for flag, port in ports.items():
        if is_free(host, port):
            yield ok(f"port {port}", "free")
        else:
            yield warn(
                f"port {port}",
                "in use, and no router of Baton answers",
                f"start with another {flag}",
            )


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()
