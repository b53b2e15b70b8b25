"""The gated delta rule (Yang and others, "Gated Delta Networks", 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernels.recurrence.delta import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.recurrence.states import StateBatch


class DeltaShape(NamedTuple):
    """Heads and their sizes, and where a state is."""

    num_key_heads: int
    #: Heads of values, and of states; each key serves as many neighbours.
    num_heads: int
    key_dim: int
    value_dim: int
    #: Index of the first number of [num_heads, key_dim, value_dim] in a state.
    first: int

    @property
    def key_size(self) -> int:
        """Elements of all keys of a token, and of its queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Elements of all values of a token."""
        return self.num_heads * self.value_dim

    @property
    def numbers(self) -> slice:
        """The numbers of a state."""
        return slice(self.first, self.first + self.value_size * self.key_dim)


def gated_delta(
    rows: Tensor,
    decays: Tensor,
    rates: Tensor,
    shape: DeltaShape,
    batch: StateBatch,
    *,
    implementation: str = "torch",
) -> Tensor:
    """Return float32 [num_tokens, num_heads, value_dim], and bring the states up to date.

    rows: float32 [num_tokens, 2 * key_size + value_size], queries, keys and values, contiguous;
    decays, rates: float32 [num_tokens, num_heads], contiguous. Queries and keys are divided by
    their lengths, and queries by the root of `key_dim`. Of a head with the state S [key_dim,
    value_dim]: S *= decay, then S += outer(k, (v - S^T k) * rate), and the result is S^T q. Tokens
    follow each other in any step by the same operations.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    expected = (len(rows), shape.num_heads)
    if rows.shape[1] != 2 * shape.key_size + shape.value_size or decays.shape != expected:
        raise ValueError(
            f"rows {tuple(rows.shape)} and decays {tuple(decays.shape)} do not fit {shape}"
        )
    if rates.shape != expected or shape.numbers.stop > batch.states.shape[1]:
        raise ValueError(
            f"rates {tuple(rates.shape)} or states of {batch.states.shape[1]} numbers do not fit "
            f"{shape}"
        )
    if implementation == "torch":
        return reference.gated_delta(rows, decays, rates, shape, batch)
    if implementation == "triton":
        from kernels.recurrence.delta.launch import launch  # noqa: PLC0415 Triton is optional

        return launch(rows, decays, rates, shape, batch)
    raise ValueError(f"gated_delta has no implementation {implementation!r}")
