"""Runs the service that the arguments are for, after something in it was changed."""

from __future__ import annotations

import runpy
import sys


def role() -> str:
    """Of this process: workers have a `--name` that begins with it."""
    if "--name" not in sys.argv:
        return "router"
    return sys.argv[sys.argv.index("--name") + 1].partition("-")[0]


def run_service() -> None:
    """Become it."""
    runpy.run_module(f"services.{role()}", run_name="__main__", alter_sys=True)
