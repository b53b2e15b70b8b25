"""Engines of several ranks, which are processes."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.engine.engine_home import EngineHome
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.model.loader import load_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.ranks.leader import RankLeader


@contextlib.contextmanager
def group_of(
    leader: RankLeader | None, model: Path, backend: str = "torch", **settings: Any
) -> Iterator[EngineHome]:
    """An engine of all ranks; None: of this process alone."""
    load = load_model if leader is None else leader.load
    home = EngineHome(
        model,
        EngineConfig(**settings),
        partial(load, dtype="float32", attention_backend=backend),
        NO_FOLLOWERS if leader is None else leader,
    )
    with contextlib.closing(home):
        yield home


def is_running(pid: int) -> bool:
    """Whether a process is there, and is no zombie."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    return False
