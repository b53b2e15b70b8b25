"""Hidden states that a step keeps beside its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenNeeds:
    """Which hidden states `observe` must bring. With any, steps never overlap."""

    #: After the model's last norm: what its output head reads.
    final: bool = False
    #: The residual stream as it enters these layers, counted from 0; `num_layers` means as it
    #: leaves the last one, before the last norm.
    layers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.final or bool(self.layers)


class CapturingModel(Protocol):
    """A model that can say what `HiddenNeeds.layers` asks for.

    A proposer that needs layers finds out when it is made whether its target can: the target has
    these methods, or the proposer raises ConfigError and says which attention backend has them.
    """

    def capture_layers(self, layers: tuple[int, ...]) -> None:
        """Keep these layers' inputs in every `forward` from now on. Called once."""
        ...

    def captured(self) -> Mapping[int, Tensor]:
        """Of the last `forward`: [num_tokens, hidden] by layer, of all its tokens.

        They belong to the caller: no later call changes them.
        """
        ...
