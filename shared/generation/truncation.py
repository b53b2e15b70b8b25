"""Shortening of a prompt that is too long, if the client asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.text.tokenizer import Tokenizer

Side = Literal["left", "right"]
SIDES: tuple[str, ...] = get_args(Side)
#: As many tokens as leave room for one token of the answer.
ALL_THERE_IS_ROOM_FOR = -1


@dataclass(frozen=True, slots=True)
class Truncation:
    """Keep at most `num_tokens` of a prompt: -1 keeps all that leave room for an answer.

    `side` is the side that is cut off. Without one it is the left, as in vLLM, and the special
    tokens at the beginning of a text are kept.
    """

    num_tokens: int
    side: Side | None = None

    def __post_init__(self) -> None:
        if self.num_tokens < ALL_THERE_IS_ROOM_FOR:
            message = f"truncate_prompt_tokens must be at least -1, not {self.num_tokens}"
            raise InvalidRequestError(message, param="truncate_prompt_tokens")

    def apply(
        self, token_ids: tuple[int, ...], *, max_model_len: int, head: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Return the tokens that are kept. `head`: special tokens that precede the text.

        Raises:
            InvalidRequestError: more tokens are to be kept than the model can take.
        """
        if self.num_tokens > max_model_len:
            message = (
                f"truncate_prompt_tokens must be at most {max_model_len}, this model's maximum "
                f"context length, not {self.num_tokens}"
            )
            raise InvalidRequestError(message, param="truncate_prompt_tokens")
        is_open = self.num_tokens == ALL_THERE_IS_ROOM_FOR
        num_kept = max_model_len - 1 if is_open else self.num_tokens
        if len(token_ids) <= num_kept:
            return token_ids
        if self.side == "right":
            return token_ids[:num_kept]
        kept_head: tuple[int, ...] = ()
        if self.side is None and token_ids[: len(head)] == tuple(head):
            kept_head = token_ids[: min(len(head), num_kept)]
        return kept_head + token_ids[len(token_ids) - (num_kept - len(kept_head)) :]


def read_truncation(num_tokens: int | None, side: str | None) -> Truncation | None:
    """Return what two fields of a request ask for. A side alone asks for nothing, as in vLLM.

    Raises:
        InvalidRequestError: one of them is wrong.
    """
    if side is not None and side not in SIDES:
        message = f"truncation_side must be left or right, not {side[:64]!r}"
        raise InvalidRequestError(message, param="truncation_side")
    if num_tokens is None:
        return None
    known: Side | None = None if side is None else ("left" if side == "left" else "right")
    return Truncation(num_tokens, known)


def special_head(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that the tokenizer writes before a text."""
    return tuple(tokenizer.encode("", add_special_tokens=True))
