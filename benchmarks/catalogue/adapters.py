"""Adapters of workers that come and go: what a worker holds, and which answers a client may get."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.v1 import worker_pb2
from shared.directory.base import AdapterPlace, AdapterState
from shared.errors import AdapterNotLoadedError, InvalidRequestError, ModelNotFoundError
from shared.request.adapter_ref import AdapterRef, adapter_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ADAPTERS = 8
_RANK = 8
#: Words of the tokenizer's vocabulary from here on stand for adapters.
_FIRST_TOKEN, _NUM_TOKENS = 300, 4096


def path_of(model: str, name: str, version: int) -> str:
    """Return the folder of a version of an adapter. Its name stands for its content."""
    return f"{model}/{name}-{version}"


def digest_of(path: str) -> bytes:
    """Return the digest of that content."""
    return hashlib.sha256(path.encode()).digest()


def token_of(digest: bytes) -> int:
    """Return the token that a worker answers with for an adapter of this content."""
    return _FIRST_TOKEN + int.from_bytes(digest[:4], "big") % _NUM_TOKENS


class HeldAdapters:
    """The adapters of one worker, whose disk has every version of its model's."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._held: dict[str, AdapterState] = {}

    def states(self) -> tuple[AdapterState, ...]:
        """Return what it reports."""
        return tuple(self._held[name] for name in sorted(self._held))

    def load(self, request: worker_pb2.LoadAdapterRequest) -> worker_pb2.LoadAdapterResponse:
        """Give a name to a version.

        Raises:
            BatonError: as a worker refuses it.
        """
        self._check(request.path, request.digest)
        before = self._held.get(request.name)
        if before is not None and not request.load_inplace:
            raise InvalidRequestError(f"{request.name} is loaded", param="name")
        adapter = AdapterRef(request.name, digest_of(request.path), request.path)
        self._held[request.name] = AdapterState(
            adapter=adapter, rank=_RANK, place=AdapterPlace.DEVICE, load_ms=1.0
        )
        answer = worker_pb2.LoadAdapterResponse(
            adapter=adapter_to_wire(adapter), rank=_RANK, load_ms=1.0
        )
        if before is not None and before.adapter != adapter:
            answer.replaced.CopyFrom(adapter_to_wire(before.adapter))
        return answer

    def unload(self, request: worker_pb2.UnloadAdapterRequest) -> worker_pb2.UnloadAdapterResponse:
        """Take a name away.

        Raises:
            ModelNotFoundError: it stands for nothing, or for another content.
        """
        state = self._held.get(request.name)
        if state is None or request.digest not in (b"", state.adapter.digest):
            raise ModelNotFoundError(f"there is no adapter {request.name}")
        del self._held[request.name]
        return worker_pb2.UnloadAdapterResponse(adapter=adapter_to_wire(state.adapter))

    def use(self, adapter: AdapterRef) -> int:
        """Return the token of a request's adapter, whether or not it is loaded.

        Raises:
            AdapterNotLoadedError: it is another model's, or its folder has other content.
        """
        self._check(adapter.path, adapter.digest)
        return token_of(adapter.digest)

    def _check(self, path: str, digest: bytes) -> None:
        if not path.startswith(f"{self._model}/") or digest not in (b"", digest_of(path)):
            raise AdapterNotLoadedError(f"{path} is not an adapter of {self._model}")


@dataclass(slots=True)
class AdapterBook:
    """What one name has stood for: a client may get what it was at some time of the request."""

    model: str
    name: str
    version: int = 0
    #: By begin [s]: the contents that may answer from then on; None: it may be unknown.
    _allowed: list[tuple[float, set[bytes | None]]] = field(default_factory=lambda: [(0.0, {None})])

    @property
    def path(self) -> str:
        """The folder of the present version."""
        return path_of(self.model, self.name, self.version)

    def may_become(self, content: bytes | None) -> None:
        """Allow a content from now on, besides those that are allowed: an order is under way."""
        self._allowed.append((time.monotonic(), self._allowed[-1][1] | {content}))

    def is_now(self, content: bytes | None) -> None:
        """Allow this content alone for requests from now on."""
        self._allowed.append((time.monotonic(), {content}))
        del self._allowed[:-64]

    def allowed_since(self, began_s: float) -> set[bytes | None]:
        """Return every content that was allowed at some time since `began_s`."""
        return set().union(*self._since(began_s))

    def _since(self, began_s: float) -> Iterator[set[bytes | None]]:
        for at, (_, contents) in enumerate(self._allowed):
            is_last = at + 1 == len(self._allowed)
            if is_last or self._allowed[at + 1][0] >= began_s:
                yield contents
