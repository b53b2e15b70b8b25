"""A vocabulary as data: what each token adds to a text, and which tokens end one.

Who constrains tokens by a grammar needs no more of a tokenizer than this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import UnsupportedError
from shared.text.decode_scheme import SchemeKind
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TokenTable:
    """One entry per token for which the model has a logit."""

    #: Each token's bytes in the middle of a text. Empty: it adds none (special tokens, padding).
    token_bytes: tuple[bytes, ...]
    #: Tokens that stand for something else than text.
    special_token_ids: frozenset[int]
    #: Tokens that end an answer.
    eos_token_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """Number of the model's logits."""
        return len(self.token_bytes)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> TokenTable:
        """The table of a model with `vocab_size` logits.

        Raises:
            UnsupportedError: this tokenizer's tokens have no bytes of their own.
        """
        if tokenizer.scheme.kind is SchemeKind.OTHER:
            raise UnsupportedError(
                "structured output needs a byte-level or sentencepiece tokenizer: the tokens of "
                "this model have no text of their own"
            )
        special = tokenizer.special_token_ids | set(tokenizer.eos_token_ids)
        return cls(
            token_bytes=tuple(
                b"" if token_id in special else tokenizer.token_bytes(token_id)
                for token_id in range(vocab_size)
            ),
            special_token_ids=frozenset(i for i in special if i < vocab_size),
            eos_token_ids=tuple(i for i in tokenizer.eos_token_ids if i < vocab_size),
        )


def read_token_table(model_dir: Path, vocab_size: int) -> TokenTable:
    """Read it from the tokenizer's files in `model_dir`.

    Raises:
        ConfigError: a file is missing or cannot be used.
        UnsupportedError: this tokenizer's tokens have no bytes of their own.
    """
    return TokenTable.of(Tokenizer.load(model_dir), vocab_size)
