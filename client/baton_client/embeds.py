"""A prompt as embeddings: a row of numbers for each token."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from baton_client.errors import invalid

if TYPE_CHECKING:
    from baton_client import contract

#: By the letter of a buffer's format.
_DTYPES: dict[str, Literal["float32", "float16"]] = {"f": "float32", "e": "float16"}
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
PARAM = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeds:
    """Rows of `width` numbers, which is the model's hidden size; little-endian.

    Servers take them with `--enable-prompt-embeds`.
    """

    rows: bytes = field(repr=False)
    width: int
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_BYTES:
            raise invalid(PARAM, f"the dtype is one of {', '.join(_ITEM_BYTES)}")
        if self.width < 1 or not self.rows:
            raise invalid(PARAM, "embeddings need a row, and a row a number")
        if len(self.rows) % (self.width * _ITEM_BYTES[self.dtype]):
            message = f"{len(self.rows)} bytes are no rows of {self.width} in {self.dtype}"
            raise invalid(PARAM, message)

    @classmethod
    def of(cls, array: Any) -> Self:
        """Return the embeddings of an array [tokens, width] of float32 or float16.

        Any object with Python's buffer protocol is one: numpy's arrays, `tensor.numpy()`.

        Raises:
            InvalidRequestError: it is none.
        """
        try:
            view = memoryview(array)
        except TypeError as error:
            raise invalid(PARAM, f"{type(array).__name__} is no array") from error
        letter = view.format.lstrip("<=@") if sys.byteorder == "little" else ""
        if view.shape is None or view.ndim != 2 or letter not in _DTYPES:
            message = f"an array [tokens, width] of float32 or float16, not {view.format}"
            raise invalid(PARAM, f"embeddings are {message} with {view.ndim} dimensions")
        return cls(rows=view.tobytes(), width=view.shape[1], dtype=_DTYPES[letter])

    def write(self, prompt: contract.Prompt) -> None:
        """Write them as the prompt of a request."""
        message = prompt.embeds
        message.rows, message.width, message.dtype = self.rows, self.width, self.dtype
