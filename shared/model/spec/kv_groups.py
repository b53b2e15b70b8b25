"""Which layers share a block table: blocks of all groups are equally long."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

#: Bytes of a number that is kept of each token, in a block of 16 tokens in 16 bits.
_BYTES_PER_NUMBER = 16 * 2


def group_layers(
    kinds: Mapping[int, Hashable], sizes: Mapping[int, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the groups of layers that share a block table: the layers of each, ascending.

    kinds: by layer, the kind of its KV; sizes: how much it keeps of a token, equally much for one
    kind. The layers of a group are of one kind; groups come in the order of their kinds. Blocks of
    all groups are equally long, so that groups keep about as much as the kind that keeps least: few
    bytes of a block are unused.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for layer, kind in kinds.items():
        by_kind.setdefault(kind, []).append(layer)
    kept = [sum(sizes[layer] for layer in layers) for layers in by_kind.values()]
    groups = []
    for layers, total in zip(by_kind.values(), kept, strict=True):
        num_groups = min(len(layers), -(-total // min(kept)))
        ends = [number * len(layers) // num_groups for number in range(num_groups + 1)]
        groups += [tuple(layers[first:end]) for first, end in pairwise(ends)]
    return tuple(groups)


def group_states(sizes: Mapping[int, int], kept: int) -> Iterator[tuple[int, ...]]:
    """Yield groups of layers with states, each about as large as a block of the other groups.

    sizes: by layer, the numbers of its state; kept: the numbers that the largest of the others
    keeps of a token, 0 if there are none.
    """
    room = kept * _BYTES_PER_NUMBER
    by_size: dict[int, list[int]] = {}
    for layer, size in sizes.items():
        by_size.setdefault(size, []).append(layer)
    for size, layers in by_size.items():
        most = max(1, room // (4 * size)) if room else len(layers)
        yield from (tuple(layers[n : n + most]) for n in range(0, len(layers), most))
