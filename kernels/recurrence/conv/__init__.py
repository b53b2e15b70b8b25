"""Causal convolutions by channel, whose states are the last rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.recurrence.conv import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.states import StateBatch


def causal_conv(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    batch: StateBatch,
    *,
    activate: bool,
    implementation: str = "torch",
) -> Tensor:
    """Return float32 [num_tokens, channels], and bring the states up to date.

    rows: [num_tokens, channels], whose last dimension is contiguous; weight: [channels, 1,
    kernel_size], contiguous, of which the last one multiplies the token's own row; bias:
    [channels]. activate: apply silu to the result. The first (kernel_size - 1) * channels numbers
    of a state are the rows before the new ones, the oldest first.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    channels = rows.shape[1]
    if len(weight) != channels or (bias is not None and bias.shape != (channels,)):
        raise ValueError(f"rows {tuple(rows.shape)} do not fit weight {tuple(weight.shape)}")
    if (weight.shape[2] - 1) * channels > batch.states.shape[1]:
        raise ValueError(
            f"states of {batch.states.shape[1]} numbers do not hold {weight.shape[2] - 1} rows of "
            f"{channels}"
        )
    if implementation == "torch":
        return reference.causal_conv(rows, weight, bias, batch, activate=activate)
    if implementation == "triton":
        from kernels.recurrence.conv.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(rows, weight, bias, batch, activate=activate)
    raise ValueError(f"causal_conv has no implementation {implementation!r}")
