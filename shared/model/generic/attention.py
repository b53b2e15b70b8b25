"""The attention of transformers' modules, over paged KV.

Modules call the function that is registered here. It passes queries, keys and values to the model
whose step is under way in the thread.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

#: Name of the implementation in transformers' registry.
NAME = "baton_paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a module asks for. Heads are as in `AttentionSpec`."""

    layer: int
    scale: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    is_causal: bool
    #: As the module passes them. A layer that reads another one's passes the same memory.
    keys: Tensor
    values: Tensor
    #: What `Step.mask` returned for the layer, if the module hands it on.
    mask: Tensor | None


class Step(Protocol):
    """A step that is under way."""

    def mask(self, window: int | None) -> Tensor | None:
        """Return what the module gets as a mask; window: within which that would show tokens."""
        ...

    def attend(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return [num_tokens, num_heads, numbers of a value's head].

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, ...], rotated.
        """
        ...


_running = threading.local()


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Let `step` compute the attention of modules that this thread calls in the context."""
    _running.step = step
    try:
        yield
    finally:
        _running.step = None


def register() -> None:
    """Make the implementation known to transformers. Safe to repeat."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """See `Step.attend`; with a batch of one in front, and heads before tokens."""
    step: Step | None = getattr(_running, "step", None)
    if step is None:
        raise InternalError("attention outside of a step")
    layer: Any = module.layer_idx
    call = Call(
        layer=int(layer),
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
        is_causal=bool(getattr(module, "is_causal", True)),
        keys=key,
        values=value,
        mask=attention_mask,
    )
    q, k, v = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    return step.attend(call, q, k, v).unsqueeze(0), None


def _no_mask(*_: Any, local_size: int | None = None, **__: Any) -> Tensor | None:
    """None: what a token sees follows from its position and the layer's window."""
    step: Step | None = getattr(_running, "step", None)
    return None if step is None else step.mask(local_size)
