"""The tree to compare with, and how the workloads are run in either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from cli.places import ROOT
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Branches that changes are merged into.
MAIN = ("origin/main", "main")
TIMEOUT_S = 300.0


class GuardError(BatonError):
    """A tree could not be measured."""


def find_base(wanted: str | None) -> str | None:
    """The commit to compare with, or None if there is none.

    That is `wanted`; or else where this branch left the main one; or else the first parent.
    """
    if wanted:
        return _git("rev-parse", "--verify", f"{wanted}^{{commit}}")
    head = _git("rev-parse", "HEAD")
    for branch in MAIN:
        base = _git("merge-base", "HEAD", branch)
        if base and base != head:
            return base
    return _git("rev-parse", "--verify", "HEAD^1")


def export(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder that exists. The repository stays as it is."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


def count_in(tree: Path, scratch: Path, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Run this tree's workloads on the code of `tree`. `scratch` is an empty folder.

    Raises:
        GuardError: they could not be run at all.
    """
    # `benchmarks` is ours in both cases, everything else is the tree's own.
    (scratch / "benchmarks").symlink_to(ROOT / "benchmarks")
    roots = [scratch, tree, tree / "proto", tree / "client"]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        # Sets of strings in the same order in both.
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.guard.measure", *names],
        cwd=tree,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise GuardError(f"the workloads do not run in {tree}:\n{done.stderr[-2000:]}")
    counts: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return counts


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
