"""Choice of tokens on the device: equal to `sampler.sample` if only temperature and filters apply.

A token's random number depends on its position alone, which is known before the tokens before it
are. So a step can be sampled, and the next one fed, before the host has got any of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from kernels.sampling import choose_tokens as choose
from kernels.sampling import native
from shared.engine.sampler.random import Purpose, uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.step.tokens.row_states import RowState
    from shared.request.sampling_params import SamplingParams

#: In place of a token, for a row without a finite logit.
NOTHING = -1


class TokenChooser(Protocol):
    """One implementation. One thread, between the model's calls."""

    @property
    def implementation(self) -> str:
        """Its name in `kernels.sampling`, for rows that need more than parameters and positions."""
        ...

    def choose(
        self, logits: torch.Tensor, states: Seq[RowState], positions: Seq[int]
    ) -> torch.Tensor:
        """Return one token per row of `logits` [n, vocab], float32, which may be overwritten.

        They are int64 [n] on the device, NOTHING where no token was left to choose.

        positions: position of each token, counted from the prompt's beginning.
        """
        ...


@runtime_checkable
class NativelyComputed(Protocol):
    """A model of the native library."""

    @property
    def pool(self) -> int:
        """The library's threads. Between the model's calls they have no work."""
        ...


def chooser_of(model: object, device: torch.device) -> TokenChooser:
    """Return the fastest implementation for the logits of a model on a device."""
    if isinstance(model, NativelyComputed):
        return NativeChooser(model.pool)
    return DeviceChooser("triton" if device.type == "cuda" else "torch")


@dataclass(frozen=True, slots=True)
class DeviceChooser:
    """On the device of the logits, by PyTorch or Triton."""

    implementation: str

    def choose(
        self, logits: torch.Tensor, states: Seq[RowState], positions: Seq[int]
    ) -> torch.Tensor:
        """See `TokenChooser.choose`."""
        return _choose_on_device(logits, states, positions, self.implementation)


class NativeChooser:
    """By the native library. Parameters are kept from step to step: only positions change."""

    implementation = "native"

    def __init__(self, pool: int) -> None:
        """Make the chooser. The pool's threads share the rows."""
        self._pool = pool
        self._states: list[RowState] = []
        self._choices = native.RowChoices(np.empty(0, native.ROW_CHOICE), None)

    def choose(
        self, logits: torch.Tensor, states: Seq[RowState], positions: Seq[int]
    ) -> torch.Tensor:
        """See `TokenChooser.choose`."""
        choices = self.choices(states)
        if choices.draws is not None:
            choices.rows["number"] = native.draw_uniforms(
                choices.draws, np.array(positions, np.uint32)
            )
        return torch.from_numpy(native.choose_rows(logits, choices.rows, self._pool))

    def choices(self, states: Seq[RowState]) -> native.RowChoices:
        """Return how tokens of these rows are chosen."""
        if states != self._states:
            self._states = list(states)
            self._choices = _row_choices([state.params for state in states])
        return self._choices


def _row_choices(params: Seq[SamplingParams]) -> native.RowChoices:
    rows = np.array(
        [
            (0.0, p.top_k, 0.0 if p.is_greedy else p.temperature, p.top_p, p.min_p, 0.0)
            for p in params
        ],
        native.ROW_CHOICE,
    )
    if all(p.is_greedy for p in params):
        return native.RowChoices(rows, None)
    draws = np.array(
        [(p.fixed_seed, p.sample_index, Purpose.SAMPLE) for p in params], native.ROW_DRAW
    )
    return native.RowChoices(rows, draws)


def _choose_on_device(
    logits: torch.Tensor, states: Seq[RowState], positions: Seq[int], implementation: str
) -> torch.Tensor:
    if all(state.is_greedy for state in states):
        return _most_likely(logits)
    params = [state.params for state in states]
    numbers = np.zeros(len(states))
    drawn = [row for row, state in enumerate(states) if not state.is_greedy]
    if drawn:
        numbers[drawn] = uniforms(
            [params[row].fixed_seed for row in drawn],
            [params[row].sample_index for row in drawn],
            [positions[row] for row in drawn],
        )
    temperatures = [0.0 if p.is_greedy else p.temperature for p in params]
    filters = [(p.top_k, p.top_p, p.min_p) for p in params]
    # One copy to the device, in 64 bits because the random numbers need them.
    packed = torch.from_numpy(np.vstack([numbers, temperatures, np.array(filters).T]))
    on_device = packed.to(logits.device, non_blocking=True)
    # No allowed token gives -inf, a broken model NaN; neither may become text.
    return choose(
        logits,
        on_device[0],
        temperature=on_device[1].float(),
        top_k=on_device[2].long(),
        top_p=on_device[3].float(),
        min_p=on_device[4].float(),
        implementation=implementation,
    )


def _most_likely(logits: torch.Tensor) -> torch.Tensor:
    """Return the first of the most likely tokens; nothing about the sequences is copied."""
    if logits.device.type == "cpu":
        # Ten times as fast as PyTorch's on one thread.
        rows = logits.numpy()
        best = rows.argmax(axis=-1)
        usable = np.isfinite(rows[np.arange(len(rows)), best])
        tokens = torch.from_numpy(best)
        if usable.all():
            return tokens
        return tokens.masked_fill(torch.from_numpy(~usable), NOTHING)
    peaks = logits.max(dim=-1)
    usable_on_device = peaks.values.isfinite()
    return peaks.indices.masked_fill(~usable_on_device, NOTHING)
