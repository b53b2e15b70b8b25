"""The hidden states behind an answer's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """A row for each token: the hidden state that its logits came from, behind the last norm.

    The first row is that of the prompt's last token. `numpy.asarray` makes an array of them;
    `torch.from_numpy(numpy.array(states))` a tensor. Empty unless `return_hidden_states` was given.
    """

    #: float32, little-endian.
    rows: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows, and of numbers in a row."""
        return len(self.rows), len(self.rows[0]) // _ITEM_BYTES if self.rows else 0

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Return what numpy reads."""
        return {"version": 3, "shape": self.shape, "typestr": "<f4", "data": b"".join(self.rows)}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.rows)


NO_HIDDEN_STATES = HiddenStates()
