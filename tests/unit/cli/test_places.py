"""What programs of Baton are started with."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cli.doctor import machine
from cli.doctor.finding import Level
from cli.extras import Extra
from cli.flags.passthrough import become
from cli.places import HUGE_PAGES, python_environ
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


def test_a_router_s_objects_lie_in_huge_pages() -> None:
    findings = list(machine.check_huge_pages())
    if findings[0].level is not Level.OK:
        pytest.skip(f"this kernel gives no huge pages: {findings[0].text}")
    # The allocator's first two pages may be small ones.
    assert kib_in_huge_pages(python_environ("services.router")) > 20_000
    if findings[0].text == "madvise":
        assert kib_in_huge_pages(python_environ("services.decode")) < 4_000


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


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONMALLOC", "pymalloc")
    assert python_environ("services.router")["PYTHONMALLOC"] == "pymalloc"


@pytest.mark.parametrize(
    ("choices", "level", "text"),
    [
        ("always [madvise] never\n", Level.OK, "madvise"),
        ("[always] madvise never\n", Level.OK, "always"),
        ("always madvise [never]\n", Level.WARN, "never"),
        (None, Level.WARN, "unknown to this kernel"),
    ],
)
def test_a_kernel_without_them_is_told(
    choices: str | None, level: Level, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "HUGE_PAGES", tmp_path / "enabled")
    if choices is not None:
        (tmp_path / "enabled").write_text(choices)
    (finding,) = machine.check_huge_pages()
    assert (finding.level, finding.text) == (level, text)
    assert bool(finding.advice) == (level is Level.WARN)
