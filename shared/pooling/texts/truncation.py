"""Shortening of a text that is too long for its vector, if the client asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import InvalidRequestError
from shared.generation.truncation import SIDES

PARAM = "truncate_prompt_tokens"
#: As many tokens as the model takes.
ALL_IT_TAKES = -1


@dataclass(frozen=True, slots=True)
class TextTruncation:
    """Keep at most `num_tokens` of a text, special ones included. Its end is cut off, or its
    beginning.
    """

    num_tokens: int
    keeps_end: bool = False

    def limit(self, max_len: int) -> int:
        """Return the number of tokens that are kept of a text for a model that takes `max_len`.

        Raises:
            InvalidRequestError: more are to be kept than the model takes.
        """
        if self.num_tokens == ALL_IT_TAKES:
            return max_len
        if self.num_tokens > max_len:
            message = f"{PARAM} must be at most {max_len}, which this model takes"
            raise InvalidRequestError(f"{message}, not {self.num_tokens}", param=PARAM)
        return self.num_tokens

    def kept(self, token_ids: tuple[int, ...], num_kept: int) -> tuple[int, ...]:
        """Return `num_kept` of the tokens, or all if there are fewer."""
        if len(token_ids) <= num_kept:
            return token_ids
        if self.keeps_end:
            return token_ids[len(token_ids) - num_kept :]
        return token_ids[:num_kept]


def read_text_truncation(num_tokens: int | None, side: str | None) -> TextTruncation | None:
    """Return what two fields of a request ask for; None: texts that are too long are refused.

    Raises:
        InvalidRequestError: one of them is wrong.
    """
    if side is not None and side not in SIDES:
        message = f"truncation_side must be left or right, not {side[:64]!r}"
        raise InvalidRequestError(message, param="truncation_side")
    if num_tokens is None:
        return None
    if num_tokens < ALL_IT_TAKES or not num_tokens:
        message = f"{PARAM} must be -1, or at least 1, not {num_tokens}"
        raise InvalidRequestError(message, param=PARAM)
    return TextTruncation(num_tokens, keeps_end=side == "left")
