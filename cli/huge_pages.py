"""Pages of 2 MiB for the objects of a router.

Between two tokens of a stream a router touches the objects of all other streams. In small pages a
virtual machine takes most of that time to look up addresses.
"""

from __future__ import annotations

import platform
from pathlib import Path

from cli.places import python_environ

#: Python's objects by malloc, and malloc's memory in pages of 2 MiB.
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
#: The first version of glibc that asks for them.
_LEAST_GLIBC = (2, 35)
#: The kernel's choices, the one in force in brackets.
_CHOICES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def service_environ(module: str) -> dict[str, str]:
    """Return the environment for the program of this module; what the user has set stays.

    Where there are no such pages, Python's own allocator is the better one.
    """
    wants = module == "services.router" and not obstacle()[0]
    return {**(HUGE_PAGES if wants else {}), **python_environ()}


def obstacle() -> tuple[str, str]:
    """Return why this system gives no such pages, and the remedy; empty if it gives them."""
    name, version = platform.libc_ver()
    if name != "glibc" or _numbers(version) < _LEAST_GLIBC:
        return f"{name or 'this C library'} {version}".strip(), "glibc 2.35 or newer asks for them"
    try:
        chosen = _CHOICES.read_text(encoding="utf-8").partition("[")[2].partition("]")[0]
    except OSError:
        chosen = ""
    if chosen in {"always", "madvise"}:
        return "", ""
    return f"kernel: {chosen or 'unknown'}", f"echo madvise > {_CHOICES}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdigit())
