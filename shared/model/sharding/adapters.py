"""A rank's part of an adapter's matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernels.low_rank import LowRankPart
    from shared.model.adapted.base import AdapterWeights
    from shared.model.sharding.cut import Cut
    from shared.model.sharding.shards import Shards


def cut_adapter(weights: AdapterWeights, shards: Shards) -> AdapterWeights:
    """Return what a rank adds to its linears.

    Of a linear whose outputs are divided it has all of A and some rows of B; where inputs are
    divided, some columns of A and all of B, whose products are added up with the linear's.
    """
    cuts = {path: shards.linear_cut(path) for path in weights}
    return {
        path: list(_own(parts, cuts[path]))
        for path, parts in weights.items()
        if not cuts[path].is_elsewhere
    }


def _own(parts: Sequence[LowRankPart], cut: Cut) -> Iterator[LowRankPart]:
    for part in parts:
        own = part
        if cut.columns is not None:
            own = replace(part, a=part.a[:, cut.columns.start : cut.columns.stop])
        if cut.rows is None:
            yield own
        elif (found := _rows(own, cut.rows)) is not None:
            yield found


def _rows(part: LowRankPart, ranges: Sequence[range]) -> LowRankPart | None:
    """Return the part with a rank's outputs; None: it changes none of them."""
    end, start, first = part.first + len(part.b), 0, None
    rows = []
    for own in ranges:
        begin, stop = max(own.start, part.first), min(own.stop, end)
        if begin < stop:
            if first is None:
                first = start + begin - own.start
            rows.append(part.b[begin - part.first : stop - part.first])
        start += len(own)
    # The rank's outputs of a part are neighbours, as its ranges are in order.
    return None if first is None else replace(part, first=first, b=torch.cat(rows))
