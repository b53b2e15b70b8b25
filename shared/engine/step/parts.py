"""A step that is computed in parts: between two of them the same runner may compute another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds


class ForwardParts(Protocol):
    """A `forward` of which nothing is computed yet, or a part."""

    @property
    def hidden(self) -> Tensor:
        """What `forward` returns; complete when it is over."""
        ...

    @property
    def num_layers(self) -> int:
        """Number of the decoder's layers that are computed, with their KV."""
        ...

    def advance(self, room_ms: float) -> bool:
        """Compute a layer and those that this time has room for; return whether it is over.

        An error ends it.
        """
        ...

    def drop(self) -> None:
        """End it, wherever it is."""
        ...


@runtime_checkable
class ModelInParts(Protocol):
    """A model whose `forward` can be computed in parts."""

    def begin_forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> ForwardParts:
        """Return a `forward` of which nothing is computed yet, for one step at a time.

        Until it is over its tensors must not change, and the model's other calls, for other
        sequences, compute beside it.
        """
        ...


@runtime_checkable
class RunnerInParts(Protocol):
    """A runner that may compute a step in parts: see `ModelRunner.launch_in_parts`."""

    def launch_in_parts(self, plan: StepPlan) -> StepInParts | None:
        """Begin a step, of which nothing is computed yet; None: it must be launched as a whole."""
        ...


class StepInParts:
    """A step that a runner has begun. Either `advance` until it returns a step, or `drop`."""

    def __init__(
        self,
        forward: ForwardParts,
        end: Callable[[Tensor], RunningStep],
        lent: ExitStack,
    ) -> None:
        """`end` makes the step of the hidden states; `lent` is closed when the step is over."""
        self._forward = forward
        self._end = end
        self._lent = lent

    @property
    def num_layers(self) -> int:
        """See `ForwardParts.num_layers`."""
        return self._forward.num_layers

    @torch.inference_mode()
    def advance(self, room_ms: float) -> RunningStep | None:
        """Compute a layer and those that this time has room for; return the step if it is over.

        An error of the model ends it, and is raised.
        """
        try:
            if not self._forward.advance(room_ms):
                return None
            step = self._end(self._forward.hidden)
        except BaseException:
            self.drop()
            raise
        self._lent.close()
        return step

    def drop(self) -> None:
        """End the step, wherever it is: its results are not wanted."""
        self._forward.drop()
        self._lent.close()
