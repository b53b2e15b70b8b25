"""A vocabulary as data: the bytes of each token in a text, and the end tokens.

Grammars need no more than this of a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import UnsupportedError
from shared.text.decode_scheme import SchemeKind
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes that do not occur in UTF-8. Byte-level vocabularies have tokens for them nevertheless.
_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """One entry per token for which the model has a logit."""

    #: Each token's bytes in the middle of a text. Empty for tokens without text (special tokens,
    #: padding), and for bytes that no text has.
    token_bytes: tuple[bytes, ...]
    #: Tokens that are not text.
    special_token_ids: frozenset[int]
    #: Tokens that end an answer.
    eos_token_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """Number of the model's logits."""
        return len(self.token_bytes)

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> TokenTable:
        """Return the table of a model with `vocab_size` logits.

        Raises:
            UnsupportedError: this tokenizer's tokens have no bytes of their own.
        """
        if tokenizer.scheme.kind is SchemeKind.OTHER:
            raise UnsupportedError(
                "structured output needs a byte-level or sentencepiece tokenizer: the tokens of "
                "this model have no text of their own"
            )
        special = tokenizer.special_token_ids | set(tokenizer.eos_token_ids)
        texts = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        return cls(
            token_bytes=tuple(
                b"" if token_id in special or not _NEVER.isdisjoint(text) else text
                for token_id, text in enumerate(texts)
            ),
            special_token_ids=frozenset(i for i in special if i < vocab_size),
            eos_token_ids=tuple(i for i in tokenizer.eos_token_ids if i < vocab_size),
        )


def read_token_table(model_dir: Path, vocab_size: int) -> TokenTable:
    """Return the table of the tokenizer's files in `model_dir`.

    Raises:
        ConfigError: a file is missing or cannot be used.
        UnsupportedError: this tokenizer's tokens have no bytes of their own.
    """
    return TokenTable.of(Tokenizer.load(model_dir), vocab_size)
