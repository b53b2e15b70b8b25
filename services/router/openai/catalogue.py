"""The served models: the one that a request names, and those that its caller may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.router.models import listed
from shared.errors import ModelNotFoundError, NoWorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from services.router.admission.caller import Caller
    from services.router.openai.backend import Backend, Common

#: Of a name, in errors.
MAX_NAME_CHARS = 200


class Shelf(Protocol):
    """The place of one model in the catalogue, whether or not the model is loaded."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names for requests; the first is the model's own."""
        ...

    def loaded(self) -> Backend | None:
        """Return what serves the model; None while no worker of it has joined."""
        ...


@dataclass(frozen=True, slots=True)
class OpenShelf:
    """A model that is always loaded."""

    backend: Backend

    @property
    def names(self) -> tuple[str, ...]:
        """See Shelf."""
        return self.backend.models.names

    def loaded(self) -> Backend:
        """See Shelf."""
        return self.backend


class Catalogue:
    """All models of a router, of which the first is the default."""

    def __init__(self, common: Common, shelves: Sequence[Shelf]) -> None:
        """Serve the models of these shelves; there is at least one, and no name twice."""
        self.common = common
        self._shelves = tuple(shelves)
        self._by_name = {name: shelf for shelf in self._shelves for name in shelf.names}

    def pick(self, name: str | None, caller: Caller) -> Backend:
        """Return the backend of the model that a request names.

        Without a name: of the default model, or of the first one that the caller may use.

        Raises:
            ModelNotFoundError: there is no such model, or it is not for this caller; the message
                names those that are.
            NoWorkerError: no worker of the model has joined.
        """
        shelf = self._find(name, caller)
        if shelf is None:
            raise self._not_found(name, caller)
        backend = shelf.loaded()
        if backend is None:
            raise NoWorkerError(f"no worker of the model {shelf.names[0]!r} has joined")
        return backend

    def visible(self, caller: Caller) -> list[Backend]:
        """Return the loaded models that the caller may use.

        Raises:
            NoWorkerError: none of them is loaded.
        """
        shelves = [shelf for shelf in self._shelves if _may_use(caller, shelf)]
        backends = [backend for shelf in shelves if (backend := shelf.loaded()) is not None]
        if shelves and not backends:
            raise NoWorkerError("no worker of any model has joined")
        return backends

    def _find(self, name: str | None, caller: Caller) -> Shelf | None:
        if not name:
            return next((shelf for shelf in self._shelves if _may_use(caller, shelf)), None)
        named = self._by_name.get(name)
        found = self._that_know(name) if named is None else (named,)
        return next((s for s in found if caller.tenant.may_use((name, *s.names))), None)

    def _that_know(self, name: str) -> Iterator[Shelf]:
        """Yield the shelves of models that answer under a name that is none of their own."""
        for shelf in self._shelves:
            backend = shelf.loaded()
            if backend is not None and backend.models.knows(name):
                yield shelf

    def _not_found(self, name: str | None, caller: Caller) -> ModelNotFoundError:
        """Return one error for unknown models and those of others: their names are not told."""
        own = [shelf for shelf in self._shelves if _may_use(caller, shelf)]
        served = [name for shelf in own for name in shelf.names]
        served += [
            adapter.name
            for shelf in own
            if (backend := shelf.loaded()) is not None
            for adapter in backend.models.adapters.all()
        ]
        if not served:
            return ModelNotFoundError("there is no model that this key may use")
        asked = (name or "")[:MAX_NAME_CHARS]
        return ModelNotFoundError(f"the model {asked!r} does not exist; served: {listed(served)}")


def one_model(backend: Backend) -> Catalogue:
    """Return the catalogue of one loaded model."""
    return Catalogue(backend, [OpenShelf(backend)])


def _may_use(caller: Caller, shelf: Shelf) -> bool:
    return caller.tenant.may_use(shelf.names)
