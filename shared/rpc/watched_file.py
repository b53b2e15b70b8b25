"""A small file of secrets that is read again when it changes, completely or not at all."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from shared.errors import ConfigError
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL_S = 1.0
MAX_FILE_BYTES = 16 * 1024 * 1024


class WatchedFile(Generic[T]):
    """The value of a file. While the file is invalid, its last valid value.

    The whole content is compared, not its time: two changes within one tick of the file system's
    clock would look like one, and a swapped link (Kubernetes swaps links to secrets) may point to
    an older file.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        """Read the file. `parse` raises ConfigError, whose message contains no secret.

        Raises:
            ConfigError: the file cannot be used.
        """
        self._path = path
        self._parse = parse
        self._content = self._read()
        self._value = self._parsed(self._content)
        #: Why the file's present content is not used; None if it is.
        self.problem: str | None = None

    @property
    def value(self) -> T:
        """The value of the last valid content."""
        return self._value

    def reload(self) -> None:
        """Read the file once. An invalid file changes nothing but `problem`, and is logged."""
        try:
            content = self._read()
            if content == self._content:
                self._settle(None)
                return
            value = self._parsed(content)
        except ConfigError as error:
            self._settle(str(error))
            return
        self._content, self._value = content, value
        self._settle(None)
        log.info("file_reloaded", path=str(self._path))

    async def follow(self, poll_s: float = POLL_S) -> None:
        """Read the file again and again until cancelled."""
        while True:
            await asyncio.sleep(poll_s)
            self.reload()

    def _settle(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            log.error("file_not_reloaded", path=str(self._path), problem=problem)
        self.problem = problem

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror or error}") from error
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{self._path} has over {MAX_FILE_BYTES} bytes")
        return content

    def _parsed(self, content: bytes) -> T:
        try:
            return self._parse(content)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from error


@asynccontextmanager
async def following(files: Iterable[WatchedFile[Any]]) -> AsyncIterator[None]:
    """The files are watched for as long as the context is open."""
    async with running(*(file.follow() for file in files)):
        yield
