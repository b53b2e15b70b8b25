"""An engine's adapters: requests with them, and those of them that cannot be served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.adapters.base import AdapterModel
from shared.engine.adapters.slots import AdapterSlots
from shared.engine.schedule.gates.adapter import AdapterGate
from shared.engine.sequence.sequence import Status
from shared.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.engine.adapters.store import AdapterStore
    from shared.engine.sequence.request import EngineRequest
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.settings.engine import EngineConfig
    from shared.errors import BatonError

#: Longest wait for an adapter before the other sequences are looked at again.
_LOAD_S = 1.0


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """The adapters of an engine at a moment, by digest."""

    #: Those in the model's slots.
    placed: frozenset[bytes] = frozenset()
    #: Sequences that are computed, sent or received, and sequences that wait.
    running: Mapping[bytes, int] = field(default_factory=dict)
    waiting: Mapping[bytes, int] = field(default_factory=dict)


class AdapterRequests:
    """Used in the engine's thread."""

    def __init__(self, model: object, config: EngineConfig, store: AdapterStore | None) -> None:
        """`store`: None if the engine serves no adapters. The model's slots are empty.

        Raises:
            ConfigError: the model takes none.
        """
        self.store = store
        self.slots: AdapterSlots | None = None
        self.gate: AdapterGate | None = None
        if store is not None:
            if not isinstance(model, AdapterModel):
                raise ConfigError("enable_lora: this implementation of the model has no adapters")
            self.slots = AdapterSlots(model, config.max_loras, store.least_used)
            self.gate = AdapterGate(
                store, self.slots, num_slots=config.max_loras, patience=config.max_num_seqs
            )

    def enter(self, request: EngineRequest) -> None:
        """Count a request, the last check of it; its sequence's end counts it out.

        Raises:
            UnsupportedError: it has an adapter, and there are none.
            AdapterNotLoadedError: its adapter is not known.
        """
        if request.adapter is None:
            return
        if self.store is None:
            raise UnsupportedError("no adapters are served here: see --enable-lora", param="model")
        self.store.enter(request.adapter)

    def failed(self, sequences: Iterable[Sequence]) -> list[tuple[Sequence, BatonError]]:
        """Return the waiting sequences whose adapter could not be read, and why."""
        failures = {} if self.store is None else self.store.take_failures()
        if not failures:
            return []
        return [
            (seq, failures[seq.identity.adapter])
            for seq in sequences
            if seq.status is Status.WAITING and seq.identity.adapter in failures
        ]

    def wait(self) -> bool:
        """Wait until an adapter may have arrived; return False if none is awaited."""
        if self.store is None or not self.store.is_loading:
            return False
        self.store.wait(_LOAD_S)
        return True

    def use(self, sequences: Iterable[Sequence]) -> AdapterUse | None:
        """Return what is used now; None if the engine serves no adapters."""
        if self.slots is None:
            return None
        running: dict[bytes, int] = {}
        waiting: dict[bytes, int] = {}
        for seq in sequences:
            digest = seq.identity.adapter
            if digest:
                counts = waiting if seq.status is Status.WAITING else running
                counts[digest] = counts.get(digest, 0) + 1
        return AdapterUse(self.slots.digests, running, waiting)
