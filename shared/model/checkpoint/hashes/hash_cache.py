"""A cache of files' hashes, so that a restarted worker need not read the files for them.

An entry is valid for one stamp of one file, since one start of the host: device numbers change with
restarts. Each entry has a checksum, so a damaged one is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from shared.model.checkpoint.files.file_stamp import FileStamp, keeps_change_times

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORMAT = "baton.hash_cache.v1"


class HashCache:
    """Digests by file, one entry each, in a folder that may be missing, full or read-only."""

    def __init__(self, folder: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Use a folder. `now_ns`: the time of day, to detect recent changes of a file."""
        self._folder = folder
        self._now_ns = now_ns

    def find(self, stamp: FileStamp) -> bytes | None:
        """Return the digest of the file with this stamp; None: unknown."""
        try:
            entry: Any = json.loads(self._path(stamp).read_text(encoding="utf-8"))
            digest = bytes.fromhex(entry["digest"])
            is_valid = entry["check"] == _check(stamp, digest)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return digest if is_valid else None

    def keep(self, path: Path, stamp: FileStamp, digest: bytes, *, since_ns: int) -> None:
        """Store the digest of a file that had this stamp before and after it was read.

        `since_ns`: when the reading began. Nothing is stored if the stamp is no evidence.
        """
        if not stamp.is_settled(since_ns) or not keeps_change_times(path):
            return
        target = self._path(stamp)
        temporary = target.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(
                json.dumps({"digest": digest.hex(), "check": _check(stamp, digest)}),
                encoding="utf-8",
            )
            temporary.replace(target)
        except OSError as error:
            log.info("hash_not_kept", folder=str(self._folder), error=str(error))
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def now_ns(self) -> int:
        """Return the wall clock's time, in nanoseconds since the epoch."""
        return self._now_ns()

    def _path(self, stamp: FileStamp) -> Path:
        """Return the entry's path, which depends on the file only: a new stamp replaces the old
        one.
        """
        name = hashlib.sha256(f"{stamp.device}:{stamp.inode}".encode()).hexdigest()
        return self._folder / f"{name}.json"


def _check(stamp: FileStamp, digest: bytes) -> str:
    try:
        boot = _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{_FORMAT}\n{boot}\n{stamp}\n{digest.hex()}".encode()).hexdigest()
