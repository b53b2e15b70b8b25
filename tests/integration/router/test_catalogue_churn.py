"""Workers and adapters of three models come and go under load, beside a real router process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.catalogue.churn import Churn, ChurnPlan
from benchmarks.router.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


async def test_no_request_reaches_a_wrong_pool_and_no_entry_outlives_its_lease(
    tmp_path: Path,
) -> None:
    folders = {name: tmp_path / name for name in ("m0", "m1", "m2")}
    for folder in folders.values():
        folder.mkdir()
        write_checkpoint(folder)
    plan = ChurnPlan(
        folders=folders,
        clients=3,
        num_adapters=3,
        change_s=0.15,
        outage_s=1.0,
        duration_s=5.0,
    )
    result = await Churn(plan, tmp_path).run()
    assert (result.num_wrong, result.faults, result.stale) == (0, [], [])
    assert min(result.answered.values()) > 20
    assert set(result.answered) == set(folders)
    assert result.num_adapter_answers > 20
    assert result.adapter_orders["load"] > 3
    assert result.num_left > 0
    assert result.num_died > 0
    assert result.rss_mib[-1] <= 1.15 * result.rss_mib[0]
