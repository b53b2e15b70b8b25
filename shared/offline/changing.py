"""What programs can change of a running engine: sleep, weights, profiles; vLLM's methods."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.engine.engine_home import TAGS
from shared.errors import InvalidRequestError, UnsupportedError
from shared.offline.records.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.offline.loaded import LoadedModel
    from shared.offline.records.metrics import Metric


class Changes:
    """Changes of a loaded model; no request may run meanwhile."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._prefix = ""

    @property
    def is_sleeping(self) -> bool:
        """Whether memory was given back."""
        return self._model.core.home.is_sleeping

    def sleep(self, level: int) -> None:
        """See `EngineHome.sleep`."""
        self._model.core.home.sleep(level)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """See `EngineHome.wake_up`; without tags everything wakes up."""
        return self._model.core.home.wake_up(TAGS if tags is None else tags)

    def update_weights(self, request: Any, weight_version: str | None) -> None:
        """Take weights from a path, or from vLLM's request with a `path` in `update_info`.

        Raises:
            UnsupportedError: the request has no path.
            InvalidRequestError, ModelLoadError: see `EngineHome.update_weights`.
        """
        self._model.core.home.update_weights(_path_of(request), weight_version)

    def start_profile(self, prefix: str | None) -> None:
        """Record every step from now on."""
        self._model.core.engine.start_profile()
        self._prefix = prefix or "engine"

    def stop_profile(self) -> Path:
        """End the record; return its file, in `profiler_dir` or the system's temporary folder."""
        folder = self._model.profiler_dir or Path(tempfile.gettempdir())
        return self._model.core.engine.stop_profile(folder, self._prefix)

    def get_metrics(self) -> list[Metric]:
        """Return all metrics as they are now."""
        core = self._model.core
        return read_metrics(core.engine.stats, model=str(self._model.folder))


def require_mode(mode: str, *, num_requests: int) -> None:
    """Check what is to become of running requests.

    Raises:
        InvalidRequestError: they are to stay, and nothing of them could.
    """
    if mode not in ("abort", "wait"):
        message = f"mode must be abort or wait, not {mode!r}: sleep keeps no request's KV"
        raise InvalidRequestError(message, param="mode")
    if mode == "wait" and num_requests:
        message = f"{num_requests} requests are running: step until they have ended"
        raise InvalidRequestError(message, param="mode")


def _path_of(request: Any) -> Path:
    if isinstance(request, str | Path):
        return Path(request)
    given = request if isinstance(request, Mapping) else vars(request)
    given = given.get("update_info", given)
    if not isinstance(given, Mapping) or "path" not in given:
        raise UnsupportedError(
            "update_weights takes the path of a folder: weights are not pushed by NCCL or IPC",
            param="path",
        )
    return Path(given["path"])
