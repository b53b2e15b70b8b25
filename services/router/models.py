"""The one model that the cluster serves: its names, and what its workers say of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModels:
    """The model under one or more names. The first is its own."""

    names: tuple[str, ...]
    #: Tokens the model has logits for; at least as many as the tokenizer knows.
    vocab_size: int
    #: Asks the registered workers; raises NoWorkerError before the first one came.
    learn_max_model_len: Callable[[], int]
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens.

        Raises:
            NoWorkerError: no decode worker has registered yet.
        """
        return self.learn_max_model_len()

    def resolve(self, name: str | None) -> str:
        """The name to answer with, as vLLM: the model's own, by whichever name it was asked for.

        Raises:
            ModelNotFoundError: no such model.
        """
        if name and name not in self.names:
            served = ", ".join(self.names)
            raise ModelNotFoundError(f"the model {name[:200]!r} does not exist; served: {served}")
        return self.names[0]


def read_vocab_size(model_dir: Path, tokenizer: Tokenizer) -> int:
    """How many tokens the model has logits for, as config.json says."""
    config = read_json(model_dir / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config = text_config | config
    size = config.get("vocab_size")
    return max(size, tokenizer.vocab_size) if isinstance(size, int) else tokenizer.vocab_size
