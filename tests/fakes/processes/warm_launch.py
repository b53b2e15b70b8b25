"""Starts the services of the fault matrix as copies: `benchmarks.faults run --launcher`."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

from benchmarks.faults import process
from cli.places import ROOT, python_command
from tests.fakes.processes.warm_process import (
    COLD_RANKS,
    WarmProcess,
    load_all,
    tell_parent_at_exit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IN_NETWORK = "--net="
_PYTHON = python_command("")[:-1]

# The runner loads its own code meanwhile.
load_all()
tell_parent_at_exit()


def launch(
    command: Sequence[str], *, environ: Mapping[str, str], log: IO[bytes], niceness: int
) -> process.Program:
    """See `process.Launch`. A copy has loaded its code and need not stand back."""
    # Ours as well: what is copied may live outside of them.
    mounts, network = (f"/proc/{os.getpid()}/ns/{kind}" for kind in ("mnt", "net"))
    program = list(command)
    if len(program) > 1 and program[1].startswith(_IN_NETWORK):
        network, program = program[1].removeprefix(_IN_NETWORK), program[2:]
    if program[: len(_PYTHON)] != _PYTHON:
        return process.launch(command, environ=environ, log=log, niceness=niceness)
    # The matrix looks for ranks among a worker's children.
    env = {**environ, COLD_RANKS: "1"}
    return WarmProcess(
        program[len(_PYTHON) :], cwd=ROOT, env=env, log=log, namespaces=(mounts, network)
    )
