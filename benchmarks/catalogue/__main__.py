"""Models whose workers and adapters come and go: `python -m benchmarks.catalogue --minutes 10`.

A real router, and workers of three models in this process, which check each request's model. It
ends with 1 if a request reached a wrong worker, was refused without a reason, if the directory knew
a worker for longer than its lease, or if the router's memory grew.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.catalogue.churn import Churn, ChurnPlan, ChurnResult
from benchmarks.router.checkpoint import write_checkpoint

#: Of the router's memory in the last quarter of a run, over that in the second.
MAX_GROWTH = 1.05


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    models: Annotated[int, typer.Option(help="Number of models.")] = 3,
    workers: Annotated[int, typer.Option(help="Workers of each.")] = 2,
    clients: Annotated[int, typer.Option(help="Requests at a time.")] = 6,
    adapters: Annotated[int, typer.Option(help="Adapters of all models together.")] = 20,
    outage_s: Annotated[
        float, typer.Option(help="Seconds without a worker; over 10, a model is unloaded.")
    ] = 12.0,
    seed: Annotated[int, typer.Option(help="The same changes again.")] = 1,
) -> None:
    """Run it, and print what was seen."""
    with tempfile.TemporaryDirectory(prefix="baton-catalogue-") as name:
        folder = Path(name)
        folders = {f"m{number}": folder / f"m{number}" for number in range(models)}
        for each in folders.values():
            each.mkdir()
            write_checkpoint(each)
        plan = ChurnPlan(
            folders=folders,
            workers_each=workers,
            clients=clients,
            num_adapters=adapters,
            outage_s=outage_s,
            duration_s=minutes * 60,
            seed=seed,
        )
        result = asyncio.run(Churn(plan, folder).run())
    print(json.dumps(describe(result), indent=2))
    raise typer.Exit(0 if is_good(result) else 1)


def is_good(result: ChurnResult) -> bool:
    """Return whether all held that must hold."""
    bad = result.num_wrong or result.faults or result.stale
    return not bad and result.growth <= MAX_GROWTH


def describe(result: ChurnResult) -> dict[str, object]:
    """Return the numbers for people."""
    return {
        "answered": dict(result.answered),
        "refused while a model had no worker": dict(result.refused),
        "at a wrong worker": result.num_wrong,
        "other faults": result.faults[:10],
        "known for longer than their lease": result.stale,
        "joined, left, died": [result.num_joined, result.num_left, result.num_died],
        "outages": result.num_outages,
        "answered by adapters": result.num_adapter_answers,
        "orders about adapters": dict(result.adapter_orders),
        "RSS MiB first, max, last": [
            round(v, 1) for v in (result.rss_mib[0], max(result.rss_mib), result.rss_mib[-1])
        ],
        "last quarter over second": round(result.growth, 3),
    }


if __name__ == "__main__":
    typer.run(main)
