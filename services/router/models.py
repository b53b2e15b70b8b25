"""The served model: its names, and facts that its workers report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import ModelNotFoundError
from shared.text.model_files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AskedModel:
    """What a request asks for by its model name."""

    #: The name for the answer.
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """The model under one or more names. The first is its own name."""

    names: tuple[str, ...]
    #: Number of tokens with logits; at least the tokenizer's number of tokens.
    vocab_size: int
    #: Returns the workers' `max_model_len`; raises NoWorkerError before any has registered.
    learn_max_model_len: Callable[[], int]
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens.

        Raises:
            NoWorkerError: no decode worker has registered yet.
        """
        return self.learn_max_model_len()

    def resolve(self, name: str | None) -> AskedModel:
        """Return what a request's name means; its answer has the model's own name, as in vLLM.

        Raises:
            ModelNotFoundError: the model is not served.
        """
        if name and name not in self.names:
            served = ", ".join(self.names)
            raise ModelNotFoundError(f"the model {name[:200]!r} does not exist; served: {served}")
        return AskedModel(self.names[0])


def read_vocab_size(model_dir: Path, tokenizer: Tokenizer) -> int:
    """Return the number of tokens with logits, from config.json."""
    config = read_json(model_dir / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config = text_config | config
    size = config.get("vocab_size")
    return max(size, tokenizer.vocab_size) if isinstance(size, int) else tokenizer.vocab_size
