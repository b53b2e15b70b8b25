"""The output of a batch: a line per answer, kept after any end of the run.

A line is appended completely or not at all: a part of a line left by a crash is cut off when the
file is opened again. So every line in the file is an answer, and its request need not be sent
again.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cli.batch.json_text import json_bytes
from cli.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

#: Longest time for which a crash of the machine (not of this process) may lose answers.
SYNC_S = 1.0
_READ_BYTES = 2**20


class BatchOutput:
    """The output file, locked against other runs until `close`."""

    def __init__(self, path: Path) -> None:
        """Create the file, or continue the one of an earlier run.

        Raises:
            CommandError: it cannot be written, another run uses it, or it has other content.
        """
        self._path = path
        #: Ids of the answered requests.
        self.done: set[str] = set()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._claim()
            self._size = self._take_over()
        except BaseException:
            os.close(self._fd)
            raise
        self._synced_s = time.monotonic()

    def append(self, line: dict[str, Any]) -> None:
        """Append an answer.

        Raises:
            CommandError: there is no space; the file is unchanged.
        """
        data = json_bytes(line) + b"\n"
        try:
            self._write(data)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise CommandError(
                f"cannot write {self._path}: {error.strerror}",
                advice="what is in it is whole; the same command goes on when there is room",
            ) from error
        self._size += len(data)
        self.done.add(line["custom_id"])

    def close(self) -> None:
        """Close the file after its content has reached the disk."""
        with suppress(OSError):
            os.fsync(self._fd)
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.write(self._fd, data[written:])
        if time.monotonic() - self._synced_s > SYNC_S:
            os.fsync(self._fd)
            self._synced_s = time.monotonic()

    def _claim(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise CommandError(f"{self._path} is not a file")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"another run is writing {self._path}") from error

    def _take_over(self) -> int:
        """Read the answered ids; return the file's size without an incomplete last line."""
        size = number = 0
        with open(os.dup(self._fd), "rb", _READ_BYTES) as file:  # noqa: PTH123 a descriptor
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    # The line has no end, so it is incomplete.
                    os.ftruncate(self._fd, size)
                    break
                self.done.add(self._custom_id(line, number))
                size += len(line)
        return size

    def _custom_id(self, line: bytes, number: int) -> str:
        try:
            fields = json.loads(line)
            custom_id = fields["custom_id"]
            if isinstance(custom_id, str) and "response" in fields:
                return custom_id
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise CommandError(
            f"line {number} of {self._path} is no answer of a batch",
            advice="give another file, or take this one away",
        )
