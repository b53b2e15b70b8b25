"""What every cell promises. The only place for limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.faults.verdict.result import Cell

#: Of a process that dies, stops or is cut off.
MAX_CRASH_OUTCOME_S = 10.0
#: Of everything else: the deadline of the requests.
MAX_OUTCOME_S = 25.0
#: p99 between tokens of streams that have nothing to do with the fault, against the quiet cluster.
MAX_ITL_RATIO = 2.0
#: Fewer gaps than this have no p99.
MIN_GAPS = 200
#: Resident memory after the warm-up of a soak.
MAX_RSS_GROWTH = 0.05

#: Which promises a cell can break; the page has a column of each.
WRONG, LEAK, KEYS, HANG, SLOW, FAILED, ITL, OTHER = (
    "wrong tokens", "leaked blocks", "keys left over", "hang", "slow outcome", "failed requests",
    "ITL", "other",
)  # fmt: skip


def broken(cell: Cell) -> dict[str, str]:
    """The promises that a cell has broken, each with what was seen."""
    if cell.skipped:
        return {}
    limit_s = MAX_CRASH_OUTCOME_S if cell.is_crash else MAX_OUTCOME_S
    ratio = itl_ratio(cell)
    found = {
        WRONG: cell.num_wrong and f"{cell.num_wrong} wrong tokens",
        LEAK: cell.leaked and f"leaked: {cell.leaked}",
        KEYS: cell.keys and f"left over in Redis: {', '.join(cell.keys)}",
        HANG: cell.num_hung and f"{cell.num_hung} requests hung",
        SLOW: (cell.outcome_s or 0) > limit_s and f"outcome after {cell.outcome_s:.1f} s",
        FAILED: cell.num_failed and f"{cell.num_failed} failed requests",
        ITL: ratio is not None and ratio > MAX_ITL_RATIO and f"ITL of others {ratio:.1f} × quiet",
        OTHER: cell.problems and "; ".join(cell.problems),
    }
    return {name: text for name, text in found.items() if isinstance(text, str)}


def itl_ratio(cell: Cell) -> float | None:
    """p99 of the unaffected streams against quiet, if enough of them were there."""
    if cell.itl_p99_ms is None or cell.num_gaps < MIN_GAPS or not cell.quiet_p99_ms:
        return None
    return cell.itl_p99_ms / cell.quiet_p99_ms
