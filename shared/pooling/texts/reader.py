"""Texts as tokens: with the checkpoint's prompt in front, shortened if that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError
from shared.pooling.texts.text_input import VectorInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.pooling.facts import PoolingFacts
    from shared.pooling.texts.truncation import TextTruncation
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReader:
    """Makes tokens of texts. Slow for long ones."""

    tokenizer: Tokenizer
    vocab_size: int
    facts: PoolingFacts
    #: None: texts that are too long are refused.
    truncation: TextTruncation | None = None
    add_special_tokens: bool = True
    #: Put in front of each text that is no list of tokens.
    prompt: str = ""

    def read(self, text: str | Sequence[int], *, param: str) -> VectorInput:
        """Return a text's tokens. `param`: the field that holds it.

        Raises:
            InvalidRequestError: it is empty, too long, or has a token that is not known.
        """
        if not text:
            raise InvalidRequestError(f"{param} must not be empty", param=param)
        if isinstance(text, str):
            token_ids = self._encode(self.prompt + text)
        else:
            token_ids = tuple(text)
            self._check_known(token_ids, param)
            if self.truncation is not None:
                token_ids = self.truncation.kept(token_ids, self.limit)
        self.check_length(len(token_ids), param)
        return VectorInput(token_ids)

    def read_all(
        self, texts: Sequence[str | Sequence[int]], params: Sequence[str]
    ) -> list[VectorInput]:
        """Return the tokens of each text. `params`: the fields that hold them."""
        return [self.read(text, param=param) for text, param in zip(texts, params, strict=True)]

    @property
    def limit(self) -> int:
        """Most tokens of a text, after it was shortened if that is asked for."""
        largest = self.facts.max_len
        return largest if self.truncation is None else self.truncation.limit(largest)

    def check_length(self, num_tokens: int, param: str) -> None:
        """Refuse a text that has no tokens, or too many.

        Raises:
            InvalidRequestError: it has.
        """
        if not num_tokens:
            raise InvalidRequestError(f"{param} has no tokens", param=param)
        if num_tokens > self.facts.max_len:
            largest = self.facts.max_len
            message = f"{param} has {num_tokens} tokens, and this model takes at most {largest}"
            if self.truncation is None:
                message += ": shorten it, or set truncate_prompt_tokens to -1"
            raise InvalidRequestError(message, param=param)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text; shortened, it keeps its special tokens at both ends."""
        token_ids = tuple(self.tokenizer.encode(text, self.add_special_tokens))
        if self.truncation is None or len(token_ids) <= self.limit:
            return token_ids
        bare = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        head, tail = _around(token_ids, bare)
        num_kept = max(0, self.limit - len(head) - len(tail))
        whole = head + self.truncation.kept(bare, num_kept) + tail
        return whole[: self.limit]

    def _check_known(self, token_ids: tuple[int, ...], param: str) -> None:
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            bad = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            message = f"{param}: token id {bad} is not in the vocabulary of {self.vocab_size}"
            raise InvalidRequestError(message, param=param)


def _around(
    whole: tuple[int, ...], bare: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens before and after a text; none if the text is not in the whole."""
    for first in range(len(whole) - len(bare) + 1):
        if whole[first : first + len(bare)] == bare:
            return whole[:first], whole[first + len(bare) :]
    return (), ()


def prompt_of(facts: PoolingFacts, name: str | None) -> str:
    """Return what is put in front of a text, by its name; None: the checkpoint's default.

    Raises:
        InvalidRequestError: the checkpoint has none of this name.
    """
    if name == "":
        return ""
    wanted = facts.default_prompt if name is None else name
    if wanted is None:
        return ""
    if wanted not in facts.prompts:
        known = ", ".join(sorted(facts.prompts)) or "none"
        message = f"prompt_name: there is no prompt {wanted[:64]!r}; there is {known}"
        raise InvalidRequestError(message, param="prompt_name")
    return facts.prompts[wanted]


def check_dimensions(facts: PoolingFacts, dimensions: int | None) -> None:
    """Refuse a number of dimensions that the model cannot give.

    Raises:
        InvalidRequestError: it is larger than the model's, or not one that it was trained for.
    """
    if dimensions is None or dimensions == facts.size:
        return
    param = "dimensions"
    if not 1 <= dimensions <= facts.size:
        message = f"dimensions must be between 1 and {facts.size}, not {dimensions}"
        raise InvalidRequestError(message, param=param)
    if not facts.supports_dimensions:
        message = (
            f"dimensions must be {facts.size}, or left out: this model was not trained for fewer "
            "(--pooler-config, or is_matryoshka in --hf-overrides, say that it was)"
        )
        raise InvalidRequestError(message, param=param)
    if facts.dimensions and dimensions not in facts.dimensions:
        known = ", ".join(map(str, facts.dimensions))
        message = f"dimensions must be one of {known}, not {dimensions}"
        raise InvalidRequestError(message, param=param)
