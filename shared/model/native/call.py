"""One step of a native decoder: with its tokens as a whole, or in parts."""

from __future__ import annotations

import math
from ctypes import addressof, byref, c_int64
from typing import TYPE_CHECKING

from kernels.native.kinds import Outcome

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from torch import Tensor

    from kernels.native.structures import Step
    from kernels.sampling.native import RowChoices
    from shared.model.native.model import NativeCausalLM


class DecoderCall:
    """Until it is over, the decoder takes no other call: those compute with another decoder."""

    def __init__(
        self,
        library: ctypes.CDLL,
        decoder: int,
        step: Step,
        hidden: Tensor,
        *,
        check: Callable[[int, str], None],
        inputs: object,
    ) -> None:
        """Make the call; nothing is computed.

        `hidden` gets the step's result. `check` raises the error of an outcome. `inputs`: what the
        step points to, kept with the call.
        """
        self._library = library
        self._decoder = decoder
        self._step = step
        self._check = check
        self._inputs = inputs
        self._has_begun = False
        #: Float32 [num_wanted, hidden], complete when the call is over; the caller's.
        self.hidden = hidden
        self.is_over = False

    def advance(self, room_ms: float = math.inf) -> bool:
        """Compute a layer and those that this time has room for, by default all; return whether it
        is over.

        Raises:
            MemoryError: there is no memory for the step, which is over.
        """
        outcome = self._library.baton_decoder_advance(
            self._decoder,
            byref(self._step),
            not self._has_begun,
            -1 if room_ms == math.inf else int(room_ms * 1e6),
        )
        self._has_begun = True
        self.is_over = outcome != Outcome.UNFINISHED
        self._check(outcome, f"the activations of {self._step.batch.num_tokens} tokens")
        return self.is_over

    @property
    def num_layers(self) -> int:
        """Number of the layers that have been computed, with their KV."""
        return int(self._library.baton_decoder_layers(self._decoder)) if self._has_begun else 0

    def drop(self) -> None:
        """End the call, wherever it is. Nothing that it has computed may be used."""
        self.is_over = True


class PreparedStep:
    """A step from its tokens to those chosen behind them. It may be computed many times.

    Each time it reads what its tensors hold then. Beside a step in parts another decoder does it.
    """

    def __init__(
        self, model: NativeCausalLM, step: Step, choices: RowChoices, *, inputs: object
    ) -> None:
        """Prepare `step`, which has logits. `inputs`: what it points to, kept with this."""
        self._model = model
        self._step = step
        self._tokens = (c_int64 * len(choices.rows))()
        step.choices = choices.rows.ctypes.data
        step.draws = None if choices.draws is None else choices.draws.ctypes.data
        step.tokens = addressof(self._tokens)
        self._inputs = choices, inputs

    def compute(self) -> list[int]:
        """Compute the step; return a token per row, -1 for a row without a finite logit.

        Raises:
            MemoryError: there is no memory for the step.
        """
        self._model.compute_step(self._step)
        return self._tokens[:]
