"""Profiles of a worker: one at a time, one file each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from shared.errors import InvalidRequestError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from shared.worker.lifecycle.lifecycle import Life, Lifecycle

log = structlog.get_logger(__name__)

_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,64}")


class Profiling:
    """Starts and stops the profile of the present life's engine."""

    def __init__(self, lifecycle: Lifecycle, folder: Path | None, name: str) -> None:
        """`folder`: for the files; None: nothing is profiled. `name`: the worker's."""
        self._lifecycle = lifecycle
        self._folder = folder
        self._name = name
        self._prefix = ""
        self._profiled: Life | None = None

    async def start(self, prefix: str) -> None:
        """Begin to record.

        Raises:
            UnsupportedError: the worker has no folder for profiles.
            InvalidRequestError: a profile runs, or the prefix is no part of a file's name.
            UnavailableError: the worker computes nothing now.
        """
        if self._folder is None:
            raise UnsupportedError(f"{self._name} has no --profiler-dir: it profiles nothing")
        if not _PREFIX.fullmatch(prefix):
            message = "profile_prefix may have letters, digits and ._- only, 64 of them at most"
            raise InvalidRequestError(message, param="profile_prefix")
        if self._profiled is not None:
            raise InvalidRequestError(f"{self._name} is being profiled already")
        life = self._lifecycle.life
        if life is None or life.engine is None:
            raise UnavailableError(f"{self._name} computes nothing now")
        await life.engine.call(lambda engine: engine.start_profile())
        # Workers may share a folder, and stop in the same millisecond.
        own = f"{prefix}.{self._name}" if prefix else self._name
        self._profiled, self._prefix = life, own

    async def stop(self) -> Path:
        """End the record; return its file.

        Raises:
            InvalidRequestError: no profile runs.
            UnavailableError: the file cannot be written.
        """
        life, self._profiled = self._profiled, None
        if life is None or life.engine is None or self._folder is None:
            raise InvalidRequestError(f"{self._name} is not being profiled")
        folder, prefix = self._folder, self._prefix
        try:
            path = await life.engine.call(lambda engine: engine.stop_profile(folder, prefix))
        except OSError as error:
            message = f"{self._name}: the profile cannot be written: {error}"
            raise UnavailableError(message) from error
        log.info("profile_written", path=str(path))
        return path

    async def end_life(self) -> None:
        """End the record of a life that is about to end, if there is one."""
        if self._profiled is None:
            return
        try:
            await self.stop()
        except UnavailableError as error:
            log.warning("profile_lost", error=str(error))
