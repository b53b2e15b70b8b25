"""Hidden states that a step returns beside its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenNeeds:
    """The hidden states that `observe` must get. With any, steps never overlap."""

    #: After the model's last norm: the input of its output head.
    final: bool = False
    #: The residual stream at the input of these layers, counted from 0; `num_layers` means the
    #: output of the last one, before the last norm.
    layers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.final or bool(self.layers)


class CapturingModel(Protocol):
    """A model that can return the states of `HiddenNeeds.layers`.

    A proposer that needs layers checks at its construction that its target has these methods.
    Otherwise it raises ConfigError, which names the attention backends that have them.
    """

    def capture_layers(self, layers: tuple[int, ...]) -> None:
        """Keep these layers' inputs in every `forward` from now on. Called once."""
        ...

    def captured(self) -> Mapping[int, Tensor]:
        """Return the states of the last `forward`: [num_tokens, hidden] by layer, of all its
        tokens.

        They belong to the caller: no later call changes them.
        """
        ...
