"""The adapters that an engine knows: their names, and as many in host memory as may be there.

It outlives an engine, whose weights may be replaced. Adapters are read in a thread of the store:
a step never waits for a disk. All methods may be called in any thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from shared.engine.adapters.recent_uses import RecentUses
from shared.errors import (
    AdapterNotLoadedError,
    BatonError,
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
)
from shared.request.adapter_ref import MAX_NAME_CHARS, AdapterRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from shared.engine.adapters.base import Adapter, ReadAdapter
    from shared.engine.adapters.folders import AdapterFolders

log = structlog.get_logger(__name__)

#: Names that were taken away and are remembered, so that a late request brings none back.
_MAX_FORGOTTEN = 1024


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter that was read once."""

    ref: AdapterRef
    #: Its largest rank.
    rank: int
    #: Milliseconds that its last read took.
    load_ms: float


class AdapterStore:
    """Known adapters, of which at most `max_host` are in memory, besides replaced ones in use.

    Ownership: a user (`enter` … `leave`) keeps an adapter known, whatever happens to its name.
    """

    def __init__(self, folders: AdapterFolders, *, max_host: int, max_pinned: int = 0) -> None:
        """Make it, without adapters. `attach` must follow before any is read.

        `max_pinned`: adapters that may be pinned; the others' memory must be enough for a step.
        """
        self.folders = folders
        self.max_host = max_host
        self._max_pinned = max_pinned
        self._read: ReadAdapter | None = None
        self._changed = threading.Condition()
        #: Several may have one content, each in a folder of its own.
        self._names: dict[str, AdapterRef] = {}
        #: With the name and the folder that were read last.
        self._known: dict[bytes, KnownAdapter] = {}
        #: In host memory.
        self._contents: dict[bytes, Adapter] = {}
        self._loading: set[bytes] = set()
        self._failures: dict[bytes, BatonError] = {}
        self._users: Counter[bytes] = Counter()
        #: Of those that are known. An order to load is a use, too: it announces some.
        self._uses = RecentUses(max_host)
        #: Digests that the engine uses or waits for: they stay in memory.
        self._wanted: dict[bytes, None] = {}
        self._pinned: set[bytes] = set()
        self._forgotten: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        #: Called after each load for a waiting sequence, in the store's thread.
        self.on_news: Callable[[], None] = lambda: None

    def attach(self, read: ReadAdapter | None) -> None:
        """Read adapters of this model from now on; None: there is none, and nothing is read."""
        with self._changed:
            self._read = read
            self._wanted = {}
            # Of reads for sequences of an engine that is gone.
            self._failures.clear()

    def forget_contents(self) -> None:
        """Free the memory; names stay, and adapters are read again for their next requests."""
        with self._changed:
            self._contents.clear()

    def close(self) -> None:
        """End the thread after its present read."""
        self._thread.shutdown(cancel_futures=True)

    # Names.

    def load(
        self, name: str, path: str, *, replace: bool = False, digest: bytes = b""
    ) -> tuple[KnownAdapter, AdapterRef | None]:
        """Read an adapter and give it a name; return it, and what had the name before, if another.

        Blocks while it is read. With `replace`, the name may have other content, else only the
        same; with `digest`, other content than that is refused.

        Raises:
            InvalidRequestError: the name is taken, or the folder has no adapter of the model.
            AdapterNotLoadedError: the content is not what the digest says.
            UnavailableError: there is no model now.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS:
            text = f"lora_name must have 1 to {MAX_NAME_CHARS} characters"
            raise InvalidRequestError(text, param="lora_name")
        folder = self.folders.find(path)
        adapter, load_ms = self._read_now(folder)
        if digest and adapter.digest != digest:
            raise _other_content(name, folder, adapter.digest, digest)
        known = KnownAdapter(
            AdapterRef(name, adapter.digest, str(folder)), adapter.max_rank, load_ms
        )
        with self._changed:
            replaced = self._require_free(name, adapter.digest, replace=replace)
            self._forgotten.pop((name, adapter.digest), None)
            self._names[name] = known.ref
            self._known[adapter.digest] = known
            self._uses.add(adapter.digest)
            if replaced is not None:
                self._after_name(name, replaced.digest)
            self._keep(adapter)
            self._trim()
        log.info("adapter_loaded", name=name, digest=adapter.digest.hex(), load_ms=load_ms)
        return known, replaced

    def unload(self, name: str, digest: bytes = b"") -> AdapterRef:
        """Take a name away; its users keep the adapter. With `digest`, only from this content.

        Raises:
            ModelNotFoundError: no adapter has the name.
        """
        with self._changed:
            own = self._names.get(name)
            if own is None or (digest and own.digest != digest):
                names = ", ".join(sorted(self._names)) or "none"
                raise ModelNotFoundError(f"there is no adapter {name!r} here: there are {names}")
            del self._names[name]
            self._after_name(name, own.digest)
        log.info("adapter_unloaded", name=name, digest=own.digest.hex())
        return own

    def pin(self, name: str) -> None:
        """Keep an adapter in host memory until its name is taken away.

        Raises:
            ModelNotFoundError: no adapter has the name.
            InvalidRequestError: what is left of the memory would be too small for a step.
        """
        with self._changed:
            own = self._names.get(name)
            if own is None:
                raise ModelNotFoundError(f"there is no adapter {name!r} here")
            if own.digest not in self._pinned and len(self._pinned) >= self._max_pinned:
                text = f"pinning {name!r} would leave a step no room: raise max_cpu_loras"
                raise InvalidRequestError(text)
            self._pinned.add(own.digest)

    def named(self, name: str) -> KnownAdapter | None:
        """Return what a name stands for; None: nothing."""
        with self._changed:
            own = self._names.get(name)
            return None if own is None else self._as(own)

    def name_of(self, digest: bytes) -> str | None:
        """Return the name that an adapter was read with; None: it is not known."""
        with self._changed:
            known = self._known.get(digest)
            return None if known is None else known.ref.name

    def names(self) -> list[KnownAdapter]:
        """Return all adapters that have a name, in the order of their names."""
        with self._changed:
            return [self._as(self._names[name]) for name in sorted(self._names)]

    # Requests.

    def ensure(self, ref: AdapterRef) -> None:
        """Make a request's adapter known: if it is not, read it from its path.

        Blocks while it is read. It gets its name, too, unless that is taken, or was taken away.

        Raises:
            AdapterNotLoadedError: this process can have no adapter of this content.
        """
        with self._changed:
            if ref.digest in self._known:
                return
        # In the store's thread: requests that come together read it once.
        self._thread.submit(self._ensure, ref).result()

    def _ensure(self, ref: AdapterRef) -> None:
        with self._changed:
            if ref.digest in self._known:
                return
        try:
            folder = self.folders.find(ref.path)
            adapter, load_ms = self._timed_read(folder)
        except BatonError as error:
            raise AdapterNotLoadedError(f"adapter {ref.name!r}: {error}") from error
        if adapter.digest != ref.digest:
            raise _other_content(ref.name, folder, adapter.digest, ref.digest)
        with self._changed:
            known = KnownAdapter(
                AdapterRef(ref.name, ref.digest, str(folder)), adapter.max_rank, load_ms
            )
            self._known.setdefault(ref.digest, known)
            if (ref.name, ref.digest) not in self._forgotten:
                self._names.setdefault(ref.name, known.ref)
            self._keep(adapter)
            self._trim()

    def enter(self, ref: AdapterRef) -> None:
        """Count a user, which keeps the adapter known until it leaves.

        Raises:
            AdapterNotLoadedError: it is not known.
        """
        with self._changed:
            if ref.digest not in self._known:
                raise AdapterNotLoadedError(
                    f"adapter {ref.name!r} ({ref.digest.hex()[:12]}) is not loaded here"
                )
            self._users[ref.digest] += 1
            self._uses.add(ref.digest)

    def leave(self, digest: bytes) -> None:
        """Count a user's end; the last one of an adapter without a name frees it."""
        with self._changed:
            self._users[digest] -= 1
            if self._users[digest] <= 0:
                del self._users[digest]
                self._drop_if_orphan(digest)

    # The engine.

    def content(self, digest: bytes) -> Adapter | None:
        """Return an adapter if it is in memory."""
        with self._changed:
            return self._contents.get(digest)

    def least_used(self, digests: Collection[bytes]) -> bytes:
        """Return the one of some adapters that was used least of late."""
        with self._changed:
            return min(digests, key=self._uses.of)

    def plan(self, used: Collection[bytes], wanted: Iterable[bytes]) -> None:
        """Keep those that are used in memory, and read those that are wanted, the first ones first.

        What a running read brings is not counted twice. Returns at once.
        """
        with self._changed:
            targets = dict.fromkeys([*used, *self._pinned])
            for digest in wanted:
                if len(targets) >= self.max_host:
                    break
                targets[digest] = None
            self._wanted = targets
            for digest in targets:
                if digest in used or digest in self._contents or digest in self._loading:
                    continue
                if digest in self._failures or digest not in self._known:
                    continue
                if not self._make_room():
                    break
                self._loading.add(digest)
                self._thread.submit(self._load_wanted, self._places(digest))

    def take_failures(self) -> dict[bytes, BatonError]:
        """Return the reads that failed since the last call, by digest."""
        with self._changed:
            failures, self._failures = self._failures, {}
            return failures

    @property
    def is_loading(self) -> bool:
        """Whether a read for a waiting sequence runs."""
        return bool(self._loading)

    def wait(self, timeout_s: float) -> None:
        """Wait until a read has ended; return at once if none runs."""
        with self._changed:
            before = set(self._loading)
            self._changed.wait_for(lambda: not before or self._loading != before, timeout_s)

    def in_memory(self) -> set[bytes]:
        """Return the digests of the adapters in host memory."""
        with self._changed:
            return set(self._contents)

    def check_integrity(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        with self._changed:
            named = self._named()
            assert named <= set(self._known), "a name stands for nothing"
            assert set(self._known) <= named | set(self._users), "an adapter without name or user"
            assert len(named & set(self._contents)) <= self.max_host, "too many in memory"
            assert set(self._contents) <= set(self._known), "one in memory that is not known"

    # With the lock, from here on.

    def _as(self, ref: AdapterRef) -> KnownAdapter:
        known = self._known[ref.digest]
        return KnownAdapter(ref, known.rank, known.load_ms)

    def _named(self) -> set[bytes]:
        return {ref.digest for ref in self._names.values()}

    def _places(self, digest: bytes) -> list[AdapterRef]:
        """Return where the content was found, each folder once, the last one first."""
        last = self._known[digest].ref
        places = {last.path: last}
        for ref in self._names.values():
            if ref.digest == digest:
                places.setdefault(ref.path, ref)
        return list(places.values())

    def _require_free(self, name: str, digest: bytes, *, replace: bool) -> AdapterRef | None:
        """Return what has the name with other content; None: nothing."""
        own = self._names.get(name)
        if own is None or own.digest == digest:
            return None
        if not replace:
            raise InvalidRequestError(
                f"adapter {name!r} is loaded already: load it in place, or unload it first",
                param="lora_name",
            )
        return own

    def _after_name(self, name: str, digest: bytes) -> None:
        self._forgotten[name, digest] = None
        self._forgotten.move_to_end((name, digest))
        while len(self._forgotten) > _MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)
        self._drop_if_orphan(digest)

    def _drop_if_orphan(self, digest: bytes) -> None:
        if digest in self._named():
            return
        self._pinned.discard(digest)
        if digest not in self._users:
            self._known.pop(digest, None)
            self._contents.pop(digest, None)
            self._uses.forget(digest)

    def _keep(self, adapter: Adapter) -> None:
        """Put an adapter that was read into memory if there is room; it is known in any case."""
        if adapter.digest in self._contents or adapter.digest in self._loading:
            return
        if self._make_room():
            self._contents[adapter.digest] = adapter

    def _make_room(self) -> bool:
        """Make room for one more; return whether there is. Replaced ones in use do not count."""
        return self._trim(self.max_host - len(self._loading) - 1)

    def _trim(self, num: int | None = None) -> bool:
        """Drop the least used ones until at most `num` are left; return whether that is done."""
        num = self.max_host if num is None else num
        named = self._named()
        kept = self._wanted.keys() | self._pinned
        held = [digest for digest in self._contents if digest in named]
        num_over = max(0, len(held) - num)
        victims = [digest for digest in held if digest not in kept]
        for victim in sorted(victims, key=self._uses.of)[:num_over]:
            del self._contents[victim]
        return len(victims) >= num_over

    # Without the lock.

    def _read_now(self, folder: Path) -> tuple[Adapter, float]:
        """Read in the store's thread, after what it reads now."""
        reading: Future[tuple[Adapter, float]] = self._thread.submit(self._timed_read, folder)
        return reading.result()

    def _timed_read(self, folder: Path) -> tuple[Adapter, float]:
        read = self._read
        if read is None:
            raise UnavailableError("there is no model now: wake it up first")
        began_s = time.perf_counter()
        try:
            adapter = read(folder)
        except OSError as error:
            text = f"{folder} cannot be read: {error}"
            raise InvalidRequestError(text, param="lora_path") from error
        return adapter, (time.perf_counter() - began_s) * 1e3

    def _load_wanted(self, places: Sequence[AdapterRef]) -> None:
        """Read a content from the first of these folders that has it still."""
        failure: AdapterNotLoadedError | None = None
        for ref in places:
            try:
                adapter, load_ms = self._timed_read(Path(ref.path))
                if adapter.digest != ref.digest:
                    raise _other_content(ref.name, Path(ref.path), adapter.digest, ref.digest)
            except Exception as error:  # noqa: BLE001 the sequences that wait for it are told
                log.warning("adapter_not_loaded", name=ref.name, path=ref.path, error=str(error))
                if failure is None:
                    failure = _failure_of(ref, error)
            else:
                self._take_in(KnownAdapter(ref, adapter.max_rank, load_ms), adapter)
                break
        else:
            assert failure is not None  # there is a folder
            with self._changed:
                self._loading.discard(places[0].digest)
                self._failures[places[0].digest] = failure
                self._changed.notify_all()
        self.on_news()

    def _take_in(self, known: KnownAdapter, adapter: Adapter) -> None:
        digest = known.ref.digest
        with self._changed:
            self._loading.discard(digest)
            if digest in self._known:
                self._contents[digest] = adapter
                self._known[digest] = known
                self._trim()
            self._changed.notify_all()


def _failure_of(ref: AdapterRef, error: Exception) -> AdapterNotLoadedError:
    failure = AdapterNotLoadedError(f"adapter {ref.name!r} cannot be loaded: {error}")
    failure.__cause__ = error
    return failure


def _other_content(name: str, folder: Path, found: bytes, wanted: bytes) -> AdapterNotLoadedError:
    return AdapterNotLoadedError(
        f"adapter {name!r}: {folder} has content {found.hex()[:12]} now, not {wanted.hex()[:12]}"
    )
