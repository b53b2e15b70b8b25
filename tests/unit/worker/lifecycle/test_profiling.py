"""A profile whose file cannot be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import InvalidRequestError, UnavailableError
from shared.worker.lifecycle.profiling import Profiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Engine:
    """Profiles, and writes no file."""

    async def call(self, action: Callable[[Any], Any]) -> Any:
        return action(self)

    def start_profile(self) -> None:
        pass

    def stop_profile(self, folder: Path, _prefix: str) -> Path:
        folder.mkdir()  # there is a file
        return folder


async def test_a_profile_that_cannot_be_written_ends_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "profiles"
    path.touch()
    cycle: Any = SimpleNamespace(life=SimpleNamespace(engine=Engine()))
    profiling = Profiling(cycle, path, "decode-0")
    await profiling.start("")
    with pytest.raises(UnavailableError, match="decode-0: the profile cannot be written"):
        await profiling.stop()
    await profiling.start("")
    # The life goes on to its end, and the record is gone.
    await profiling.end_life()
    with pytest.raises(InvalidRequestError, match="not being profiled"):
        await profiling.stop()
