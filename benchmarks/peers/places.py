"""Where the peers' environments, the models and the results are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cli.places import ROOT

RESULTS = ROOT / "results" / "peers"
#: Of the last run.
LOGS = RESULTS / "logs"
INSTALL = "benchmarks/peers/install.sh"


def home() -> Path:
    """BATON_BENCH_HOME, or a folder in the user's cache."""
    chosen = os.environ.get("BATON_BENCH_HOME")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "baton-bench"


def peer_python(name: str) -> Path | None:
    """The interpreter of a peer's environment, or None if there is none.

    BATON_BENCH_<NAME> names one; otherwise it is <home>/<name>/bin/python.
    """
    chosen = os.environ.get(f"BATON_BENCH_{name.upper()}")
    python = Path(chosen) if chosen else home() / name / "bin" / "python"
    return python if python.is_file() and os.access(python, os.X_OK) else None


def import_folder(parent: Path) -> Path:
    """A folder from which a peer can import `benchmarks` and nothing else of ours.

    With the whole repository on its path a peer would find our `kernels` where its libraries
    look for the package of that name.
    """
    folder = parent / "imports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    return folder
