"""Which token ids a prompt may hold, and text for APIs that take no token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids of ordinary tokens. Without a tokenizer there is no text."""

    ids: NDArray[np.int64]
    tokenizer: Any = None

    def draw(self, num_tokens: int, rng: np.random.Generator) -> list[int]:
        """Token ids, each independent of the others."""
        drawn: list[int] = rng.choice(self.ids, size=num_tokens).tolist()
        return drawn

    def text(self, token_ids: list[int]) -> str:
        """Text of the tokens. Read again, it may be fewer or more tokens."""
        if self.tokenizer is None:
            raise ConfigError("this API takes text, not token ids: pass --tokenizer")
        return str(self.tokenizer.decode(token_ids))

    def count(self, text: str) -> int | None:
        """Number of tokens of a text, or None if there is no tokenizer to ask."""
        if self.tokenizer is None:
            return None
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def load_vocabulary(
    tokenizer: Path | None, *, vocab_size: int | None, model_root: Path | None
) -> Vocabulary | None:
    """Read the tokenizer, or that of the model if its folder is here; None if nothing is known.

    Raises:
        ConfigError: `tokenizer` was asked for and is not one.
    """
    file = tokenizer or model_root
    if file is not None and file.is_dir():
        file = file / "tokenizer.json"
    if tokenizer is None and (file is None or not file.is_file()):
        return None if vocab_size is None else Vocabulary(np.arange(vocab_size))
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"--tokenizer: cannot read {file}: {error}") from error
    return Vocabulary(_ordinary_ids(loaded, vocab_size), loaded)


def _ordinary_ids(tokenizer: Tokenizer, vocab_size: int | None) -> NDArray[np.int64]:
    """Special tokens are left out: an end-of-text inside a prompt is not what is measured."""
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values()) - special
    return np.array(sorted(id for id in ids if vocab_size is None or id < vocab_size))
