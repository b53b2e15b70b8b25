"""A folder of block files that belongs to one worker at a time.

`ROOT/NAMESPACE/HH/HASH.kv`: every namespace (model, dtype, layout, block size) has a sub-folder of
its own, so other models' blocks are never seen. Within it one worker holds a lock: the size would
have no bound if two counted their own files only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from shared.connector.protocol.checksum import layout_fingerprint
from shared.engine.offload.disk.block_file import (
    HEADER_BYTES,
    TEMPORARY_SUFFIX,
    CorruptBlockError,
    file_size,
    read_block,
    write_block,
)
from shared.errors import ConfigError
from shared.kv.identity import HASH_BYTES, group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout

log = structlog.get_logger(__name__)

SUFFIX = ".kv"


class BlockFolder:
    """Block files by hash.

    Call `open` first; call from one thread only; `close` unlocks the folder. Without `close` it is
    unlocked when nothing refers to this.
    """

    def __init__(
        self, path: Path, lock: int, namespace: bytes, layout: KVLayout, *, packs: bool
    ) -> None:
        self.path = path
        self._packs = packs
        #: Bytes of each file.
        self._sizes: dict[bytes, int] = {}
        #: Bytes of all files. Read in any thread.
        self.num_bytes = 0
        self._unlock = weakref.finalize(self, os.close, lock)
        self._namespace = namespace
        self._layout = layout_fingerprint(layout)
        #: The most that a file has.
        self.file_bytes = layout.block_bytes + HEADER_BYTES

    @classmethod
    def open(
        cls, root: Path, namespace: bytes, layout: KVLayout, *, packs: bool = False
    ) -> BlockFolder:
        """Take the namespace's sub-folder; create it if needed.

        packs: whether blocks of bfloat16 are packed when they are written; all files are read.

        Raises:
            ConfigError: it is not writable, or another worker has it.
        """
        path = root / namespace.hex()
        try:
            path.mkdir(parents=True, exist_ok=True)
            # A reader of KV blocks can reconstruct prompts.
            path.chmod(0o700)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write to kv_offload_disk_dir {root}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise ConfigError(
                f"kv_offload_disk_dir {root} is in use by another worker of this model; give each "
                "worker a folder of its own"
            ) from error
        return cls(path, lock, namespace, layout, packs=packs and layout.dtype == "bfloat16")

    @staticmethod
    def forget(root: Path, namespace: bytes) -> None:
        """Delete a namespace's sub-folder with all blocks, unless a worker has it."""
        path = root / namespace.hex()
        try:
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
        except OSError as error:
            log.warning("kv_offload_forget_failed", folder=str(path), error=str(error))
        finally:
            os.close(lock)

    def scan(self) -> list[bytes]:
        """Return hashes of complete-looking files, least recently used first; delete others."""
        found: list[tuple[int, bytes]] = []
        self._sizes.clear()
        self.num_bytes = 0
        for entry in self._entries():
            try:
                key = _key_of(Path(entry.path))
                stat = entry.stat(follow_symlinks=False)
                if key is not None and self._is_complete(Path(entry.path), stat.st_size):
                    found.append((stat.st_mtime_ns, key))
                    self._note(key, stat.st_size)
                elif entry.name.endswith((SUFFIX, TEMPORARY_SUFFIX)):
                    Path(entry.path).unlink()
            except OSError as error:
                log.warning("kv_offload_file_skipped", path=entry.path, error=str(error))
        return [key for _, key in sorted(found)]

    def write(
        self,
        key: bytes,
        data: NDArray[np.uint8],
        checksum: int,
        *,
        used_at_s: float | None = None,
    ) -> int:
        """Write a block; return how many bytes packing has saved.

        `used_at_s`: time of its last use, in Unix seconds; by default now.

        Raises:
            OSError: the file was not written.
        """
        path = self._path_of(key)
        path.parent.mkdir(exist_ok=True)
        num_bytes = write_block(
            path,
            data,
            namespace=self._namespace,
            key=key,
            layout=self._layout,
            checksum=checksum,
            packed=self._packs,
        )
        self._note(key, num_bytes)
        if used_at_s is not None:
            os.utime(path, (used_at_s, used_at_s))
        return self.file_bytes - num_bytes

    def read(self, key: bytes, out: NDArray[np.uint8]) -> int:
        """Read a block and return its checksum.

        A corrupt file is deleted. Raises as `read_block`.
        """
        path = self._path_of(key)
        try:
            return read_block(path, out, namespace=self._namespace, key=key, layout=self._layout)
        except CorruptBlockError as error:
            log.warning("kv_offload_file_corrupt", path=str(path), reason=str(error))
            with suppress(OSError):
                path.unlink()
                self._note(key, 0)
            raise
        except FileNotFoundError:
            self._note(key, 0)
            raise

    def remove(self, keys: Iterable[bytes]) -> None:
        """Delete files. A file that cannot be deleted now is found again at the next start."""
        for key in keys:
            try:
                self._path_of(key).unlink(missing_ok=True)
                self._note(key, 0)
            except OSError as error:
                log.warning("kv_offload_delete_failed", block=key.hex(), error=str(error))

    def close(self) -> None:
        """Unlock the folder for other workers."""
        self._unlock()

    def _note(self, key: bytes, num_bytes: int) -> None:
        """Note the size of a file; 0: it is gone."""
        self.num_bytes += num_bytes - self._sizes.pop(key, 0)
        if num_bytes:
            self._sizes[key] = num_bytes

    def _is_complete(self, path: Path, num_bytes: int) -> bool:
        """Return whether a file of so many bytes looks complete."""
        if num_bytes >= self.file_bytes:
            return num_bytes == self.file_bytes
        return file_size(path) == num_bytes

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        for folder in sorted(self.path.iterdir()):
            if folder.is_dir() and len(folder.name) == 2:
                with os.scandir(folder) as entries:
                    yield from entries

    def _path_of(self, key: bytes) -> Path:
        name = key.hex()
        return self.path / name[:2] / (name + SUFFIX)


def _key_of(path: Path) -> bytes | None:
    """Return the key in a file's name, if the file is at its place."""
    try:
        key = bytes.fromhex(path.stem)
    except ValueError:
        return None
    is_key = len(key) == HASH_BYTES or (len(key) == HASH_BYTES + 1 and group_of(key) > 0)
    is_ours = is_key and path.name == key.hex() + SUFFIX
    return key if is_ours and path.parent.name == path.stem[:2] else None
