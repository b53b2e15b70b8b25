"""The fake model with adapters: each makes other numbers of the ids, which the blocks then have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.engine.adapters.folders import AdapterFolders
from shared.engine.adapters.store import AdapterStore
from shared.errors import InvalidRequestError
from shared.request.adapter_ref import AdapterRef
from tests.fakes.engine.model import FakeModel, context_hashes, most_likely

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from shared.model.attention.base import AttentionMetadata

#: An adapter of value n adds n times this to all ids.
SHIFT = 1000


@dataclass(frozen=True)
class FakeAdapter:
    """An adapter that is a number."""

    value: int
    max_rank: int = 1

    @property
    def digest(self) -> bytes:
        return digest_of(self.value)

    @property
    def weights(self) -> Any:
        return self.value


def digest_of(value: int) -> bytes:
    return hashlib.sha256(str(value).encode()).digest()


class AdaptedFakeModel(FakeModel):
    """Its slots have numbers."""

    def __init__(self, windows: Sequence[int | None] = (None,)) -> None:
        super().__init__(windows)
        self.slots: dict[int, int] = {}

    def set_adapter(self, slot: int, weights: Any) -> None:
        if weights is None:
            self.slots.pop(slot, None)
        else:
            self.slots[slot] = weights

    def adapt(self, token_ids: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """See `FakeModel.adapt`."""
        if metadata.adapters is None:
            return token_ids
        token_ids = token_ids.clone()
        for start, end, slot in metadata.adapters.tokens.segments:
            token_ids[start:end] += SHIFT * self.slots[slot]
        return token_ids


def read_fake(folder: Path) -> FakeAdapter:
    """Read an adapter that `write_fake` wrote."""
    file = folder / "value"
    if not file.is_file():
        raise InvalidRequestError(f"{folder} has no adapter")
    return FakeAdapter(int(file.read_text()))


def write_fake(folder: Path, value: int) -> AdapterRef:
    """Write an adapter; return its name, which is that of its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "value").write_text(str(value))
    return AdapterRef(folder.name, digest_of(value), str(folder.resolve()))


def make_store(root: Path, *, max_host: int) -> AdapterStore:
    """A store that reads fake adapters below `root`."""
    store = AdapterStore(AdapterFolders(root), max_host=max_host)
    store.attach(read_fake)
    return store


def adapted_tokens(prompt: Sequence[int], num: int, value: int) -> list[int]:
    """What the model continues with; 0: without an adapter."""
    shift = SHIFT * value
    *_, now = 1.0, *context_hashes(token + shift for token in prompt)
    tokens: list[int] = []
    for _ in range(num):
        tokens.append(most_likely(now))
        (now,) = context_hashes([tokens[-1] + shift], now)
    return tokens
