"""Ranks' blocks, filled from a whole sequence's keys, values and states: by slices of numpy.

It knows what a block looks like, and nothing of cuts and maps: what a hand-off moved is compared
with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.kv.group_rules import GroupKind
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.kv.hand_off import Holder
    from shared.kv.layout import KVGroup, KVLayout

SENTINEL = 0xA5


def own_heads(num_heads: int, size: int, place: int) -> list[int]:
    """Written out a second time, as the reference has it."""
    if size <= num_heads:
        return list(range(place * num_heads // size, (place + 1) * num_heads // size))
    return [place * num_heads // size]


@dataclass
class Contents:
    """A sequence's contents of all groups, as bytes below the sentinel."""

    #: By group: [num_tokens, layers, kinds, heads, bytes of a row's values] and of its scale, or of
    #: states [layers, 4 * state_size].
    values: list[np.ndarray]
    scales: list[np.ndarray]

    @classmethod
    def of(cls, layout: KVLayout, num_tokens: int, seed: int = 0) -> Contents:
        rng = np.random.default_rng(seed)
        values, scales = [], []
        for group in layout.groups:
            if group.kind is GroupKind.STATE:
                shape = (group.num_layers, 4 * group.state_size)
                scale = 0
            else:
                heads = (num_tokens, group.num_layers, group.num_kinds, group.num_kv_heads)
                shape = (*heads, group.head_dim * layout.element_bytes)
                scale = 4 if layout.has_token_scales else 0
            values.append(rng.integers(0, SENTINEL, shape, np.uint8))
            scales.append(rng.integers(0, SENTINEL, (*shape[:-1], scale), np.uint8))
        return cls(values, scales)


class Arenas:
    """The memories of a worker's ranks."""

    def __init__(self, holder: Holder, num_blocks: int) -> None:
        self.holder = holder
        self.memories = [KVMemory(layout, num_blocks) for layout in holder.rank_layouts]
        for memory in self.memories:
            memory.blocks[:] = SENTINEL

    def close(self) -> None:
        for memory in self.memories:
            memory.close()

    def place(
        self, sequence: Contents, tables: Sequence[Sequence[int]], tokens: Sequence[range]
    ) -> None:
        """Write these tokens of each group; of one with states, the state in its last block."""
        for rank, memory in enumerate(self.memories):
            blocks = memory.blocks
            for number, group in enumerate(self.holder.layout.groups):
                layers = slice(*_edges(self.holder.split.layers(rank, number)))
                if layers.start == layers.stop:
                    continue
                values = sequence.values[number]
                if group.kind is GroupKind.STATE:
                    row = self._state(values[layers], group, rank)
                    blocks[tables[number][-1], : row.size] = row.reshape(-1)
                    continue
                split = self.holder.split
                heads = own_heads(group.num_kv_heads, split.tensor_size, split.place(rank))
                for token in tokens[number]:
                    block, at = divmod(token, self.holder.layout.block_size)
                    self._write(
                        blocks[tables[number][block]],
                        at,
                        values[token, layers][:, :, heads],
                        sequence.scales[number][token, layers][:, :, heads],
                    )

    def _write(self, block: np.ndarray, at: int, values: np.ndarray, scales: np.ndarray) -> None:
        size = self.holder.layout.block_size
        *heads, width = values.shape
        head = size * (width + scales.shape[-1])
        view = block[: int(np.prod(heads)) * head].reshape(*heads, head)
        view[..., at * width : (at + 1) * width] = values
        if scales.shape[-1]:
            start = size * width + 4 * at
            view[..., start : start + 4] = scales

    def _state(self, values: np.ndarray, group: KVGroup, rank: int) -> np.ndarray:
        split, start, found = self.holder.split, 0, []
        for section in group.sections:
            width = sum(heads * size for heads, size in section.parts)
            for _ in range(section.num_rows):
                for heads, size in section.parts:
                    part = values[:, 4 * start : 4 * (start + heads * size)]
                    own = own_heads(heads, split.tensor_size, split.place(rank))
                    found.append(
                        part.reshape(len(values), heads, -1)[:, own].reshape(len(values), -1)
                    )
                    start += heads * size
            assert width * section.num_rows == section.size
        return np.concatenate(found, 1)


def _edges(places: range) -> tuple[int, int]:
    return places.start, places.stop
