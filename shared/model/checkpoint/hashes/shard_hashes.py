"""Hashes of every byte of a checkpoint's shards; of large ones in threads beside the loading one.

The hash is BLAKE3: it is cryptographic, so two checkpoints never have one digest, and on a core
without instructions for SHA several times as fast as SHA-256, so that it keeps pace with the
loading.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from kernels.native.build import cache_dir
from shared.errors import ModelLoadError
from shared.model.checkpoint.files.file_stamp import FileStamp
from shared.model.checkpoint.hashes.hash_cache import HashCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

#: Shards that are hashed at the same time.
MAX_THREADS = 2
#: Files with so many bytes together are hashed by the thread that asks for their digests: sooner
#: than threads have started.
_SMALL_BYTES = 1 << 20
#: Bytes per read: they stay in a core's cache until they are hashed. With pieces of 1 MiB, Zen 3
#: hashed 1.6 GB/s of a file in memory instead of 3.1.
_PIECE_BYTES = 1 << 16


class _StoppedError(Exception):
    """Ends the hashing threads: the digests are not needed any more."""


class ShardHashes:
    """Digests of files that the loader reads at the same time.

    Hashing begins with the context, or once digests of small files are asked for; load the files
    inside it. `digests` waits for the end.
    """

    def __init__(self, paths: Iterable[Path], *, cache: HashCache | None = None) -> None:
        self._paths = tuple(paths)
        self._cache = cache or HashCache(cache_dir() / "weights")
        self._stamps: dict[Path, FileStamp] = {}
        self._digests: Sequence[Callable[[], bytes]] = ()
        self._stopping = threading.Event()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._stamps = {path: _stamp(path) for path in self._paths}
        if sum(stamp.size for stamp in self._stamps.values()) <= _SMALL_BYTES:
            self._digests = [partial(self._digest, path) for path in self._paths]
            return self
        self._pool = pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="shard-hash")
        self._digests = [pool.submit(self._digest, path).result for path in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def digests(self) -> list[tuple[str, bytes]]:
        """Return name and digest of each file, in order. Call it after the files have been loaded.

        Raises:
            ModelLoadError: a file was changed or replaced since the context began, so the loaded
                bytes may differ from the hashed ones; or it cannot be read.
        """
        digests = [digest() for digest in self._digests]
        for path, stamp in self._stamps.items():
            _check_unchanged(path, stamp, _stamp(path))
        return [(path.name, digest) for path, digest in zip(self._paths, digests, strict=True)]

    def _digest(self, path: Path) -> bytes:
        stamp = self._stamps[path]
        since_ns = self._cache.now_ns()
        known = self._cache.find(stamp)
        if known is not None:
            return known
        try:
            digest = self._hash(path, stamp)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        self._cache.keep(path, stamp, digest, since_ns=since_ns)
        return digest

    def _hash(self, path: Path, stamp: FileStamp) -> bytes:
        hasher = blake3()
        piece = memoryview(bytearray(_PIECE_BYTES))
        with path.open("rb", buffering=0) as file:
            _check_unchanged(path, stamp, FileStamp.of(file.fileno()))
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while num_bytes := file.readinto(piece):
                if self._stopping.is_set():
                    raise _StoppedError
                hasher.update(piece[:num_bytes])
            _check_unchanged(path, stamp, FileStamp.of(file.fileno()))
        return hasher.digest()


def _stamp(path: Path) -> FileStamp:
    try:
        return FileStamp.of(path)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _check_unchanged(path: Path, before: FileStamp, now: FileStamp) -> None:
    if now != before:
        raise ModelLoadError(
            f"{path} was changed while it was loaded: start again when it is complete"
        )
