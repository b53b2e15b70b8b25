"""A router's objects lie in pages of 2 MiB, where the system gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cli import huge_pages
from cli.doctor import machine
from cli.doctor.finding import Level
from cli.extras import Extra
from cli.flags.passthrough import become
from cli.huge_pages import HUGE_PAGES, obstacle, service_environ
from cli.processes import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Makes 40 MB of small objects, and prints KiB of this process in pages of 2 MiB.
MANY_OBJECTS = """
kept = [b"%099d" % number for number in range(300_000)]
with open("/proc/self/smaps_rollup") as file:
    print(next(line.split()[1] for line in file if line.startswith("AnonHugePages:")))
"""


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HUGE_PAGES:
        monkeypatch.delenv(name, raising=False)


def kib_in_huge_pages(environ: Mapping[str, str]) -> int:
    command = [sys.executable, "-c", MANY_OBJECTS]
    return int(subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's file; it gives the pages."""
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_CHOICES", path)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.35"))
    return path


def test_a_router_s_objects_lie_in_huge_pages() -> None:
    if why := obstacle()[0]:
        pytest.skip(f"this system gives no huge pages: {why}")
    # The allocator's first two pages may be small ones.
    assert kib_in_huge_pages(service_environ("services.router")) > 20_000
    if "[madvise]" in huge_pages._CHOICES.read_text():
        assert kib_in_huge_pages(service_environ("services.decode")) < 4_000


@pytest.mark.usefixtures("choices")
def test_every_door_to_a_router_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`baton up`, and `baton serve router`, which is the image's command, too."""
    process = ServiceProcess("r", "services.router", (), tmp_path / "log")
    assert HUGE_PAGES.items() <= process.environ.items()
    started: list[dict[str, str]] = []

    def execve(program: str, words: list[str], environ: dict[str, str]) -> None:
        started.append(environ)
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(SystemExit):
        become("services.router", (), Extra.ROUTER)
    assert HUGE_PAGES.items() <= started[0].items()


@pytest.mark.usefixtures("choices")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONMALLOC", "pymalloc")
    assert service_environ("services.router")["PYTHONMALLOC"] == "pymalloc"


@pytest.mark.parametrize(
    ("libc", "kernel", "why"),
    [
        (("glibc", "2.36"), "always [madvise] never\n", ""),
        (("glibc", "3.0"), "[always] madvise never\n", ""),
        (("glibc", "2.36"), "always madvise [never]\n", "kernel: never"),
        (("glibc", "2.36"), None, "kernel: unknown"),
        (("glibc", "2.34"), "always [madvise] never\n", "glibc 2.34"),
        (("", ""), "always [madvise] never\n", "this C library"),
    ],
)
def test_a_system_without_them_is_told_and_keeps_python_s_allocator(
    libc: tuple[str, str],
    kernel: str | None,
    why: str,
    choices: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    choices.unlink() if kernel is None else choices.write_text(kernel)
    assert obstacle()[0] == why
    assert ("PYTHONMALLOC" in service_environ("services.router")) is (not why)
    (finding,) = machine.check_huge_pages()
    assert finding.level is (Level.WARN if why else Level.OK)
    assert (why in finding.text, bool(finding.advice)) == (True, bool(why))
