"""A worker of two ranks whose second one can receive wrong bytes.

`python -m tests.fakes.worker.damaged_worker ROLE FILE …`: while FILE exists, a bit of every piece
that rank 1 receives is flipped on its way. Everything else is the real worker. Not for `nixl`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from services.worker import program
from shared.connector.protocol.inbound import Inbound
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.protocol.frame import Frame


def damage_while(path: Path) -> None:
    """Flip bits while there is such a file."""
    accept = Inbound.accept

    async def damaged(self: Inbound, frame: Frame, sources: Any) -> None:
        if self.ticket.receiver.name.endswith(".1") and path.exists():  # noqa: ASYNC240 a stat
            sources = [np.array(part) for part in sources]
            sources[0].reshape(-1)[5] ^= 4
        await accept(self, frame, sources)

    Inbound.accept = damaged  # type: ignore[method-assign]


def run(argv: Sequence[str]) -> int:
    """The worker's own entry point."""
    role, path, *rest = argv
    damage_while(Path(path))
    return program.run(Role(role), rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
