"""Hidden states that a step returns beside its tokens, and their storage in the pool's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch

from shared.engine.prompt_hidden import HiddenFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from shared.engine.memory.arena import KVArena
    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.step.batch.batch import Batch
    from shared.model.loaded import LoadedModel

_DTYPES = ("float32", "bfloat16", "float16")


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


class HiddenPool:
    """The arena's blocks, as rows of hidden states."""

    def __init__(self, loaded: LoadedModel, arena: KVArena) -> None:
        self._config = loaded.spec
        self._model = loaded.model
        self._dtype = loaded.dtype
        self._block_bytes = arena.layout.block_bytes
        self._device = arena.device
        #: The format of states that peers may send with a prompt; None: they are not used here.
        self.wanted: HiddenFormat | None = None
        self._bytes = arena.bytes()

    def format(self, needs: HiddenNeeds) -> HiddenFormat | None:
        """Return the format of states; None if this model has none, or they are too long.

        Workers with equal models and layouts have equal formats.
        """
        can_capture = hasattr(self._model, "capture_layers")
        num_layers, dtype = self._config.num_layers, str(self._dtype).removeprefix("torch.")
        if needs.layers and not (can_capture and max(needs.layers) <= num_layers):
            return None
        row_size = (len(needs.layers) + needs.final) * self._config.hidden_size
        row_bytes = row_size * self._dtype.itemsize
        if not row_bytes or row_bytes > self._block_bytes or dtype not in _DTYPES:
            return None
        return HiddenFormat(
            layers=needs.layers,
            final=needs.final,
            dtype=dtype,
            row_size=row_size,
            row_bytes=row_bytes,
            rows_per_block=self._block_bytes // row_bytes,
        )

    def write(self, placed: PlacedHidden, first_position: int, states: Tensor) -> None:
        """Write the requested states [n, row_size] of the tokens from `first_position` on.

        In the order of the device's stream.
        """
        num_unplaced = max(0, placed.begin - first_position)
        states = states[num_unplaced:]
        if len(states):
            at = self._places(placed, first_position + num_unplaced, len(states))
            self._rows(placed.format)[at] = states.to(self._dtype)

    @torch.inference_mode()
    def read(self, placed: PlacedHidden, first_position: int, num_tokens: int) -> Tensor:
        """Return a copy [num_tokens, row_size] of written states, written here or by the peer."""
        at = self._places(placed, first_position, num_tokens)
        states = self._rows(placed.format)[at]
        if self._device.type == "cuda":
            # A peer may soon own the blocks and write to them outside our stream.
            torch.cuda.current_stream(self._device).synchronize()
        return states

    def _places(self, placed: PlacedHidden, first: int, num: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(num) + (first - placed.begin)
        blocks = torch.tensor(placed.blocks)[rows // placed.format.rows_per_block]
        within = rows % placed.format.rows_per_block
        return blocks.to(self._device), within.to(self._device)

    def _rows(self, form: HiddenFormat) -> Tensor:
        """Return the blocks as [num_blocks, rows_per_block, row_size]."""
        used = self._bytes[:, : form.rows_per_block * form.row_bytes]
        return used.view(self._dtype).view(-1, form.rows_per_block, form.row_size)


class HiddenKeeper:
    """Captures hidden states in the steps in which a sequence's states are to be sent.

    All other steps are unaffected: they overlap, and compute the last layer for the needed tokens
    only.
    """

    def __init__(self, model: object, pool: HiddenPool) -> None:
        self._model = model
        self._pool = pool
        self._captured: tuple[int, ...] = ()

    def capture(self, placed: Iterable[PlacedHidden], own: tuple[int, ...]) -> None:
        """Capture layers in the next step: those to be sent, and a proposer's `own`."""
        wanted = {layer for each in placed for layer in each.format.layers}
        layers = tuple(sorted(wanted.union(own)))
        if layers != self._captured:
            cast("CapturingModel", self._model).capture_layers(layers)
            self._captured = layers

    def keep(self, batch: Batch, final: Tensor) -> None:
        """Write the states of the step as its plan says; `final` has all of its tokens."""
        by_layer: Mapping[int, Tensor] = {}
        if self._captured:
            by_layer = cast("CapturingModel", self._model).captured()
        for place, placed in batch.plan.hidden.items():
            rows = slice(batch.starts[place], batch.starts[place + 1])
            parts = [by_layer[layer][rows] for layer in placed.format.layers]
            if placed.format.final:
                parts.append(final[rows])
            self._pool.write(placed, batch.plan.firsts[place], torch.cat(parts, dim=-1))
