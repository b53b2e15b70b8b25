"""The recurrence of Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernels.recurrence.mamba import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.states import StateBatch


class MambaShape(NamedTuple):
    """Heads and their sizes, and where a state is."""

    num_heads: int
    head_dim: int
    #: Groups of neighbouring heads that share b and c.
    num_groups: int
    state_dim: int
    #: Index of the first number of [num_heads, head_dim, state_dim] in a state.
    first: int

    @property
    def inner_size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of all groups' b, and of their c."""
        return self.num_groups * self.state_dim

    @property
    def numbers(self) -> slice:
        """The numbers of a state."""
        return slice(self.first, self.first + self.inner_size * self.state_dim)


def mamba_scan(
    rows: Tensor,
    decays: Tensor,
    steps: Tensor,
    skip: Tensor,
    shape: MambaShape,
    batch: StateBatch,
    *,
    implementation: str = "torch",
) -> Tensor:
    """Return float32 [num_tokens, num_heads, head_dim], and bring the states up to date.

    rows: float32 [num_tokens, inner_size + 2 * group_size], x, b and c, contiguous; decays, steps:
    float32 [num_tokens, num_heads], contiguous; skip: float32 [num_heads]. Of a head with the state
    S [head_dim, state_dim]: S *= decay, then S += outer(step * x, b), and the result is
    S c + skip * x. With `torch`, tokens follow each other by the same operations in any step; with
    `triton`, a step of more than `MOST_SINGLE` tokens of a sequence differs by rounding.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    expected = (len(rows), shape.num_heads)
    if rows.shape[1] != shape.inner_size + 2 * shape.group_size or decays.shape != expected:
        raise ValueError(
            f"rows {tuple(rows.shape)} and decays {tuple(decays.shape)} do not fit {shape}"
        )
    if steps.shape != expected or shape.numbers.stop > batch.states.shape[1]:
        raise ValueError(
            f"steps {tuple(steps.shape)} or states of {batch.states.shape[1]} numbers do not fit "
            f"{shape}"
        )
    if implementation == "torch":
        return reference.mamba_scan(rows, decays, steps, skip, shape, batch)
    if implementation == "triton":
        from kernels.recurrence.mamba.launch import launch  # noqa: PLC0415 Triton is optional

        return launch(rows, decays, steps, skip, shape, batch)
    raise ValueError(f"mamba_scan has no implementation {implementation!r}")
