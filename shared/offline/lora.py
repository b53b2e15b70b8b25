"""vLLM's `LoRARequest`, and the adapters that a program has given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from shared.engine.adapters.store import AdapterStore
    from shared.request.adapter_ref import AdapterRef


@dataclass(slots=True, kw_only=False)
class LoRARequest:
    """An adapter for requests: a name, a number of the program's choice, and a folder.

    Two with one name are equal. `load_inplace` reads the folder again, in place of what the name
    stands for.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, object] | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            InvalidRequestError: a field is wrong.
        """
        if self.lora_int_id < 1:
            message = f"lora_int_id must be at least 1, not {self.lora_int_id}"
            raise InvalidRequestError(message, param="lora_int_id")
        if not self.lora_path:
            raise InvalidRequestError("lora_path must be a folder", param="lora_path")
        if self.tensorizer_config_dict is not None:
            raise UnsupportedError(
                "tensorizer_config_dict: adapters are read from PEFT's folders",
                param="tensorizer_config_dict",
            )

    @property
    def adapter_id(self) -> int:
        """The number."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """The name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The folder."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


class Adapters:
    """A program's adapters, by its numbers. Methods may be called in any thread."""

    def __init__(self, store: AdapterStore | None) -> None:
        """`store`: None if the engine serves no adapters."""
        self._store = store
        #: By number: the name, and the path that was given.
        self._given: dict[int, LoRARequest] = {}

    def find(self, request: object) -> AdapterRef | None:
        """Return the adapter of a request, read now if it is new; None: it has none.

        Raises:
            UnsupportedError: the engine serves no adapters.
            InvalidRequestError: it cannot be used.
        """
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            message = f"lora_request must be a LoRARequest, not {request!r:.80}"
            raise InvalidRequestError(message, param="lora_request")
        store = self._required()
        own = self._given.get(request.lora_int_id)
        if own is not None and own != request:
            message = f"lora_int_id {request.lora_int_id} is that of {own.lora_name!r}"
            raise InvalidRequestError(message, param="lora_int_id")
        known = store.named(request.lora_name)
        # Read once for each record that says so, and not for each of its requests.
        is_read = own is not None and (own is request or not request.load_inplace)
        if known is None or own is None or not is_read or own.lora_path != request.lora_path:
            return self._load(store, request)
        return known.ref

    def _load(self, store: AdapterStore, request: LoRARequest) -> AdapterRef:
        loaded, _ = store.load(request.lora_name, request.lora_path, replace=request.load_inplace)
        self._given[request.lora_int_id] = request
        return loaded.ref

    def add(self, request: LoRARequest) -> bool:
        """Read an adapter; return whether it was new. Raises as `find`."""
        is_new = request.lora_int_id not in self._given
        self.find(request)
        if not is_new and request.load_inplace:
            self._load(self._required(), request)
        return is_new or request.load_inplace

    def remove(self, lora_id: int) -> bool:
        """Take an adapter away; return whether it was there. Requests that run keep it."""
        store = self._required()
        request = self._given.pop(lora_id, None)
        if request is None or store.named(request.lora_name) is None:
            return False
        store.unload(request.lora_name)
        return True

    def list(self) -> set[int]:
        """Return the numbers of all adapters."""
        self._required()
        return set(self._given)

    def pin(self, lora_id: int) -> bool:
        """Keep an adapter in host memory.

        Raises:
            InvalidRequestError: there is none of this number, or no memory for it.
        """
        store = self._required()
        if lora_id not in self._given:
            raise InvalidRequestError(f"there is no adapter {lora_id}", param="lora_id")
        store.pin(self._given[lora_id].lora_name)
        return True

    def _required(self) -> AdapterStore:
        if self._store is None:
            raise UnsupportedError(
                "no adapters are served here: enable_lora=True", param="lora_request"
            )
        return self._store
