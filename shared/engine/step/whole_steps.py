"""Steps that a model computes in one call: from their tokens to those chosen behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from kernels.sampling.native import RowChoices
    from shared.engine.step.batch.batch import Batch
    from shared.engine.step.tokens.choice import NativeChooser
    from shared.engine.step.tokens.row_states import RowState
    from shared.model.attention.base import AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds


class PreparedStep(Protocol):
    """A step that may be computed many times, with what its tensors hold then."""

    def compute(self) -> list[int]:
        """Compute it; return a token per wanted row, `token_choice.NOTHING` where there is none."""
        ...


@runtime_checkable
class ChoosingModel(Protocol):
    """A model that chooses tokens itself."""

    def prepare_step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None,
        choices: RowChoices,
    ) -> PreparedStep:
        """Return a step that chooses a token behind each wanted row; nothing is computed yet."""
        ...


class WholeSteps:
    """Prepares steps of one engine, and keeps the last one while the next ones are like it."""

    def __init__(
        self, model: ChoosingModel, kv_caches: Sequence[PagedCache], chooser: NativeChooser
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._chooser = chooser
        self._batch: Batch | None = None
        self._states: list[RowState] = []
        self._step: PreparedStep | None = None

    def compute(self, batch: Batch, states: list[RowState]) -> list[int]:
        """Return the tokens behind the rows of a batch, all of which are sampled."""
        if self._step is None or batch is not self._batch or states != self._states:
            self.forget()
            self._step = self._model.prepare_step(
                batch.token_ids,
                batch.positions,
                self._kv_caches,
                batch.metadata,
                batch.given,
                self._chooser.choices(states),
            )
            self._batch, self._states = batch, states
        return self._step.compute()

    def forget(self) -> None:
        """Free the memory of the last step."""
        self._step = self._batch = None
