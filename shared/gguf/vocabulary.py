"""The tokens of a GGUF file, and what kind each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shared.gguf.values import Values

#: What stands for a blank in vocabularies of sentencepiece.
BLANK = "\u2581"
#: By key of a tokenizer_config.json: that of a file.
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
#: Tokens that end an answer, by the keys that say so.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
#: Tokens that end one by their texts. Most files have no key for the end of a turn, and llama.cpp
#: knows it by these, too.
_END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),  # Llama 3
        *("<|im_end|>", "<|endoftext|>"),  # Qwen, and others that speak ChatML
        "<end_of_turn>",  # Gemma
        "<|end|>",  # Phi-3
        *("<|return|>", "<|call|>"),  # gpt-oss
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    }
)
#: In a vocabulary with the second and the third, the first one ends a message, not the answer.
_HARMONY = ("<|end|>", "<|return|>", "<|call|>")


class TokenKind(IntEnum):
    """Numbers of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id."""

    values: Values
    tokens: Sequence[str]
    kinds: Sequence[int]

    @classmethod
    def of(cls, values: Values) -> Vocabulary:
        """Read it.

        Raises:
            ConfigError: there is none, two tokens are the same, or a list has another length.
        """
        path = values.header.path
        tokens = values.texts("tokenizer.ggml.tokens")
        kinds = values.whole_numbers("tokenizer.ggml.token_type") or [TokenKind.NORMAL] * len(
            tokens
        )
        if not tokens:
            raise ConfigError(f"{path}: tokenizer.ggml.tokens is missing: there is no tokenizer")
        if len(kinds) != len(tokens):
            raise ConfigError(
                f"{path}: tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} "
                "tokens"
            )
        if len(set(tokens)) != len(tokens):
            raise ConfigError(f"{path}: tokenizer.ggml.tokens has the same token twice")
        return cls(values, tokens, kinds)

    def spelled_with_blanks(self) -> Vocabulary:
        """Return the vocabulary with runs of blanks as sentencepiece spells them."""
        known = set(self.tokens)
        spelled = [
            token
            if not token or token.strip(" ") or BLANK * len(token) in known
            else BLANK * len(token)
            for token in self.tokens
        ]
        return Vocabulary(self.values, spelled, self.kinds)

    def added(self) -> list[dict[str, Any]]:
        """Return the entries of tokenizer.json for tokens that texts are cut at."""
        return [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == TokenKind.CONTROL,
            }
            for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if token and kind in (TokenKind.CONTROL, TokenKind.USER_DEFINED)
        ]

    def named(self) -> dict[str, str]:
        """Return special tokens by their names in a tokenizer_config.json."""
        found = {key: self._token(own) for key, own in _NAMED.items()}
        return {key: token for key, token in found.items() if token is not None}

    def ends(self) -> list[int]:
        """Return the ids of tokens that end an answer."""
        named = (self.values.find_id(f"tokenizer.ggml.{key}") for key in _ENDS)
        cut_at = {each["content"]: each["id"] for each in self.added()}
        found = dict.fromkeys(each for each in named if each is not None)
        found |= dict.fromkeys(cut_at[text] for text in cut_at if text in _END_TEXTS)
        of_message, *of_answer = _HARMONY
        if of_message in cut_at and all(text in cut_at for text in of_answer):
            found.pop(cut_at[of_message], None)
        return list(found)

    def normal(self) -> Iterator[tuple[int, str]]:
        """Yield the tokens that texts are made of."""
        for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED):
                yield number, token

    def _token(self, key: str) -> str | None:
        number = self.values.find_id(f"tokenizer.ggml.{key}")
        if number is not None and number >= len(self.tokens):
            raise ConfigError(
                f"{self.values.header.path}: tokenizer.ggml.{key} is {number}, and there are "
                f"{len(self.tokens)} tokens"
            )
        return None if number is None else self.tokens[number]
