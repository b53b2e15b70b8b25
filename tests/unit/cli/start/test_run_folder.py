"""Every run has a folder of its own; old ones go, and those that run stay."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cli import places
from cli.errors import CommandError
from cli.places import ROOT, python_environ
from cli.start.run_folder import KEPT_RUNS, run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    return tmp_path / ".run"


def other_run(root: Path) -> subprocess.Popen[str]:
    """Another process with a run of its own, which ends when its input does."""
    code = (
        "import sys, pathlib\nfrom cli import places\nplaces.ROOT = pathlib.Path(sys.argv[1])\n"
        "from cli.start.run_folder import run_folder\n"
        "with run_folder() as folder:\n"
        "    (folder / 'router.log').write_text('theirs')\n"
        "    print(folder, flush=True)\n    sys.stdin.read()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(root.parent)],
        cwd=ROOT,
        env=python_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_runs_at_a_time_share_no_log_and_latest_is_the_newer(root: Path) -> None:
    with run_folder() as ours:
        (ours / "router.log").write_text("ours")
        with other_run(root) as other:
            assert other.stdout is not None
            theirs = other.stdout.readline().strip()
            assert theirs != str(ours)
            assert (root / "latest").resolve() in (ours, root / theirs)
            other.communicate()
        assert (ours / "router.log").read_text() == "ours"
        assert (root / theirs / "router.log").read_text() == "theirs"
    assert (root / "latest" / "router.log").is_file()


def test_the_folder_of_a_run_that_started_nothing_goes(root: Path) -> None:
    with run_folder() as first:
        (first / "router.log").touch()
        (first / "cluster-token").touch()
    moved = first.rename(root / "20200101-000000-999999")
    with run_folder() as second:
        (second / "cluster-token").touch()
        assert (root / "latest").resolve() == second
    assert not second.exists()
    assert (root / "latest").resolve() == moved


def test_old_runs_go_and_those_that_run_stay(root: Path) -> None:
    root.mkdir()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    runs = f"20200101-000000-{os.getpid()}"
    (root / runs).mkdir()
    (root / "certs").mkdir()
    for day in range(10, 10 + KEPT_RUNS + 3):
        (root / f"202001{day}-000000-{ended.pid}").mkdir()
    with run_folder() as folder:
        names = {path.name for path in root.iterdir()}
    kept = {f"202001{day}-000000-{ended.pid}" for day in range(14, 10 + KEPT_RUNS + 3)}
    assert names == {"certs", "latest", runs, folder.name} | kept


def test_a_disk_without_room_is_found_at_once(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with (
            pytest.raises(CommandError, match=r"cannot write logs: .*File too large"),
            run_folder(),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(root.iterdir()) == []
