"""Hidden states that an answer returns: for each of its tokens the row that its logits came from.

A row is what the model's output head reads, so it lies behind the last norm. The first token's row
is that of the prompt's last token; the answer's last token was never an input, and has none. Rows
are float32 everywhere: every dtype of a model fits into it without loss, and rows from workers of
different dtypes have one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from shared.request.sampling_params import SamplingParams

PARAM = "return_hidden_states"
#: Name of a number's type, for clients.
DTYPE = "float32"
ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class HiddenStatesPolicy:
    """Whether answers may return hidden states, and how many bytes of them."""

    is_allowed: bool = False
    #: Of all answers to a request, if they become as long as they may.
    max_bytes: int = 0
    #: Numbers in a row; None: not known here, so that `max_bytes` is not checked.
    hidden_size: int | None = None

    def check(self, sampling: SamplingParams, *, num_answers: int = 1) -> None:
        """Check a request before any work is done for it.

        Raises:
            UnsupportedError: it asks for hidden states, and they are not allowed.
            InvalidRequestError: they could be too many.
        """
        if not sampling.return_hidden_states:
            return
        if not self.is_allowed:
            raise UnsupportedError(
                f"{PARAM} is refused here: routers and workers return hidden states with "
                "--enable-return-hidden-states",
                param=PARAM,
            )
        if self.hidden_size is None:
            return
        row_bytes = self.hidden_size * ITEM_BYTES * num_answers
        num_bytes = sampling.max_tokens * row_bytes
        if num_bytes > self.max_bytes:
            answers = "an answer" if num_answers == 1 else f"{num_answers} answers"
            raise InvalidRequestError(
                f"{PARAM}: {answers} of {sampling.max_tokens} tokens would return {num_bytes} "
                f"bytes, and at most {self.max_bytes} are allowed (--hidden-states-bytes): set "
                f"max_tokens to at most {self.max_bytes // row_bytes}",
                param=PARAM,
            )


#: For a process that returns none.
NO_HIDDEN_STATES = HiddenStatesPolicy()
