"""What encoders are computed with: PyTorch's operations, or the native kernels'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.model.decoder.layers import activate
from shared.model.encoders.whole_attention import whole_attention
from shared.model.linear.base import DENSE

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.encoders.whole_attention import Attend
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.feed_forwards import Activation


class Gate(Protocol):
    """See `gated`."""

    def __call__(self, kind: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
        """Return the function of `gate`, times `up` if there is one."""
        ...


def gated(kind: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
    """Return the function of `gate`, times `up` if there is one.

    Both: [num_tokens, size], not used afterwards: the result may lie in their memory.
    """
    inner = activate(kind, gate)
    return inner if up is None else inner.mul_(up)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Linears, attention and gates of an encoder; by default PyTorch's."""

    method: LinearMethod = DENSE
    attend: Attend = whole_attention
    gate: Gate = gated


TORCH = Operations()
