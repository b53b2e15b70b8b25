"""The served model: its names, and facts that its workers report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shared.errors import ModelNotFoundError
from shared.text.model_files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shared.request.adapter_ref import AdapterRef
    from shared.text.tokenizer import Tokenizer

#: Names in the message that there is no such model.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class AskedModel:
    """What a request asks for by its model name."""

    #: The name for the answer.
    name: str
    #: None: the model itself.
    adapter: AdapterRef | None = None


class Adapters(Protocol):
    """The adapters that the model's live workers serve."""

    def find(self, name: str) -> AdapterRef | None:
        """Return the adapter of a name; None: there is none."""
        ...

    def all(self) -> Sequence[AdapterRef]:
        """Return all, in the order of their names."""
        ...


class NoAdapters:
    """Of a model that is served alone."""

    def find(self, name: str) -> AdapterRef | None:
        """See Adapters."""
        return None

    def all(self) -> Sequence[AdapterRef]:
        """See Adapters."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """The model under one or more names. The first is its own name."""

    names: tuple[str, ...]
    #: Number of tokens with logits; at least the tokenizer's number of tokens.
    vocab_size: int
    #: Returns the workers' `max_model_len`; raises NoWorkerError before any has registered.
    learn_max_model_len: Callable[[], int]
    created_s: int = field(default_factory=lambda: int(time.time()))
    adapters: Adapters = field(default_factory=NoAdapters)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens.

        Raises:
            NoWorkerError: no decode worker has registered yet.
        """
        return self.learn_max_model_len()

    def resolve(self, name: str | None) -> AskedModel:
        """Return what a request's name means: the model, by any of its names, or an adapter.

        As in vLLM, an answer has the model's own name, or the adapter's.

        Raises:
            ModelNotFoundError: the model is not served.
        """
        if not name or name in self.names:
            return AskedModel(self.names[0])
        adapter = self.adapters.find(name)
        if adapter is None:
            served = listed([*self.names, *(each.name for each in self.adapters.all())])
            raise ModelNotFoundError(f"the model {name[:200]!r} does not exist; served: {served}")
        return AskedModel(name, adapter)

    def knows(self, name: str) -> bool:
        """Return whether `resolve` finds the name."""
        return name in self.names or self.adapters.find(name) is not None


def listed(names: Sequence[str]) -> str:
    """Return the names for an error: the first ones, and how many more there are."""
    more = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def read_vocab_size(model_dir: Path, tokenizer: Tokenizer) -> int:
    """Return the number of tokens with logits, from config.json."""
    size = _number(model_dir, "vocab_size")
    return tokenizer.vocab_size if size is None else max(size, tokenizer.vocab_size)


def read_hidden_size(model_dir: Path) -> int | None:
    """Return the model's hidden size, from config.json; None if that does not say."""
    return _number(model_dir, "hidden_size")


def _number(model_dir: Path, name: str) -> int | None:
    config = read_json(model_dir / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config = text_config | config
    value = config.get(name)
    return value if isinstance(value, int) else None
