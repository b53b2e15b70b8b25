"""A worker whose engine can be made to hang.

`python -m tests.fakes.worker.stuck_worker ROLE FILE …`: while FILE exists, no step of its engine
ends. Everything else is the real worker.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.worker import program
from shared.engine.pipeline.step_pipeline import StepPipeline
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def hang_while(path: Path) -> None:
    """Make every step of this process wait until there is no such file."""
    finish: Callable[..., Any] = StepPipeline.finish

    def hanging(self: StepPipeline) -> Any:
        while path.exists():
            time.sleep(0.01)
        return finish(self)

    StepPipeline.finish = hanging  # type: ignore[method-assign]


def run(argv: Sequence[str]) -> int:
    """The worker's own entry point, with an engine that can hang."""
    role, path, *rest = argv
    hang_while(Path(path))
    return program.run(Role(role), rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
