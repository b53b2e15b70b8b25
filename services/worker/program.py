"""The worker program, started with a role: the one for which routers prefer it at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.config import WorkerProgramConfig
from services.worker.parts import add_reader, add_services
from shared.text.token_table import read_token_table
from shared.worker.process import main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.identity import Role


def run(role: Role, argv: Sequence[str]) -> int:
    """Run a worker until it is told to stop; return the exit code."""
    return main(
        WorkerProgramConfig,
        role,
        argv=argv,
        add_services=add_services,
        add_reader=add_reader,
        read_token_table=read_token_table,
    )
